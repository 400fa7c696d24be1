// Meshes are kept in a list for the life of the process and found by
// comparing, so that equal ones have one number, and nodes can name a mesh by
// it. A placement travels in the arguments of a Redistribute as three numbers
// an axis, followed by the sizes of parts where a dim is not divided evenly.
#include "multi/mesh.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/sizes.h"
#include "multi/mesh_names.h"

namespace tinyshard {
namespace {

int64_t count(const std::vector<MeshAxis>& axes) {
  int64_t n = 1;
  for (const MeshAxis& a : axes) n = multiply_sizes(n, a.size);
  return n;
}

}  // namespace

std::string DeviceRef::to_string() const {
  return rank == kHere ? fmt::format("{}:{}", kind, index)
                       : fmt::format("{}:{}@{}", kind, index, rank);
}

std::shared_ptr<const Mesh::Data> Mesh::intern(std::vector<MeshAxis> axes,
                                               std::vector<DeviceRef> devices) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty())
      fail(fmt::format("mesh axis {} of size {} has no name", i, axes[i].size));
    if (axes[i].size < 1)
      fail(fmt::format("mesh axis \"{}\" has size {}", axes[i].name, axes[i].size));
    for (size_t j = 0; j < i; ++j) {
      if (axes[i].name == axes[j].name)
        fail(fmt::format("mesh has two axes named \"{}\"", axes[i].name));
    }
  }
  if (count(axes) != int64_t(devices.size())) {
    fail(fmt::format("a mesh of {} places cannot hold {} devices", count(axes), devices.size()));
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices.size() <= 64 && std::find(devices.begin(), devices.begin() + long(i), devices[i]) !=
                                    devices.begin() + long(i)) {
      fail(fmt::format("device {} stands twice in a mesh, where each device holds its own part{}",
                       devices[i].to_string(),
                       devices[i].kind == "CPU"
                           ? ": a CPU is as many devices as you like, CPU:0, CPU:1 and so on"
                           : ""));
    }
  }
  static std::mutex mutex;
  static auto& known = *new std::vector<std::shared_ptr<const Data>>;
  std::lock_guard lock(mutex);
  for (const auto& data : known) {
    if (data->axes == axes && data->devices == devices) return data;
  }
  known.push_back(std::make_shared<const Data>(
      Data{int64_t(known.size()), std::move(axes), std::move(devices)}));
  return known.back();
}

Mesh::Mesh(std::vector<MeshAxis> axes, std::vector<DeviceRef> devices,
           std::source_location caller) {
  const Call call("Mesh", caller);
  data_ = intern(std::move(axes), std::move(devices));
}

Mesh::Mesh(std::vector<MeshAxis> axes, std::source_location caller) {
  const Call call("Mesh", caller);
  int64_t wanted = count(axes);
  const auto& all = tinyshard::world().devices;
  if (wanted > int64_t(all.size())) {
    fail(fmt::format(
        "a mesh of {} devices, but the job has {}: in one process TS_DEVICES_PER_RANK={} or "
        "Runtime::configure({{.devices_per_rank = {}}}) before the first tensor gives as many, or "
        "Mesh::of names them; under a launcher, more ranks or --devices-per-rank",
        wanted, all.size(), wanted, wanted));
  }
  data_ = intern(std::move(axes),
                 std::vector(all.begin(), all.begin() + long(std::max<int64_t>(wanted, 0))));
}

Mesh Mesh::world(std::vector<MeshAxis> axes, std::source_location caller) {
  const Call call("Mesh::world", caller);
  int64_t total = int64_t(tinyshard::world().devices.size()), known = 1;
  MeshAxis* open = nullptr;
  for (MeshAxis& a : axes) {
    if (a.size != -1) {
      known = multiply_sizes(known, a.size);
    } else if (open) {
      fail("a mesh can leave the size of one axis open, not of two");
    } else {
      open = &a;
    }
  }
  if (open) open->size = known > 0 ? total / known : 0;
  if (count(axes) != total) {
    std::string sizes;
    for (const MeshAxis& a : axes) {
      const bool left = &a == open;
      sizes += fmt::format("{}{}={}", sizes.empty() ? "" : ", ", a.name,
                           left ? std::string("what is left") : std::to_string(a.size));
    }
    fail(fmt::format(
        "{} {} {} device{}, but the job has {}: the sizes of "
        "the axes have to multiply to that",
        sizes, open ? "needs a multiple of" : "needs", known, known == 1 ? "" : "s", total));
  }
  return Mesh(std::move(axes), tinyshard::world().devices);
}

Mesh Mesh::single(const DeviceRef& device) { return Mesh(intern({}, {device})); }

const Mesh& Mesh::unset() {
  static const Mesh& mesh = *new Mesh(single({}));  // outlives every static user
  return mesh;
}

int Mesh::axis(std::string_view wanted) const {
  std::string known;
  for (size_t i = 0; i < axes().size(); ++i) {
    if (axes()[i].name == wanted) return int(i);
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", axes()[i].name);
  }
  fail(fmt::format("mesh has no axis \"{}\"; it has {}", wanted, known.empty() ? "none" : known));
}

std::vector<int64_t> Mesh::coordinates(int64_t position) const {
  std::vector<int64_t> place(axes().size());
  for (size_t a = axes().size(); a-- > 0;) {
    place[a] = position % axes()[a].size;
    position /= axes()[a].size;
  }
  return place;
}

namespace {

std::vector<MeshAxis> without_axis(std::vector<MeshAxis> axes, int axis) {
  axes.erase(axes.begin() + axis);
  return axes;
}

std::vector<DeviceRef> devices_at(const Mesh& mesh, int axis, int64_t coordinate) {
  std::vector<DeviceRef> found;
  for (int64_t p = 0; p < mesh.size(); ++p) {
    if (mesh.coordinates(p)[size_t(axis)] == coordinate) found.push_back(mesh.devices()[size_t(p)]);
  }
  return found;
}

}  // namespace

Mesh Mesh::at(std::string_view name, int64_t coordinate) const {
  const int axis = this->axis(name);
  const int64_t size = axes()[size_t(axis)].size;
  if (coordinate < 0 || coordinate >= size) {
    throw UserError(fmt::format("{} has {} place{} along \"{}\": {} is none of them", to_string(),
                                size, size == 1 ? "" : "s", name, coordinate));
  }
  return Mesh(intern(without_axis(axes(), axis), devices_at(*this, axis, coordinate)));
}

int Mesh::axis_left_out(const Mesh& part) const {
  const auto first = std::ranges::find(devices(), part.devices()[0]);
  if (first == devices().end()) return -1;
  const std::vector<int64_t> place = coordinates(first - devices().begin());
  for (int axis = 0; axis < int(axes().size()); ++axis) {
    if (without_axis(axes(), axis) == part.axes() &&
        devices_at(*this, axis, place[size_t(axis)]) == part.devices())
      return axis;
  }
  return -1;
}

std::string Mesh::to_string() const {
  if (is_single()) return devices()[0].to_string();
  std::string text;
  for (const MeshAxis& a : axes())
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", a.name, a.size);
  return "mesh(" + text + ")";
}

std::pair<std::string, std::string> told_apart(const Mesh& a, const Mesh& b) {
  std::pair<std::string, std::string> texts{a.to_string(), b.to_string()};
  if (a == b || texts.first != texts.second) return texts;
  auto [x, y] = std::ranges::mismatch(a.devices(), b.devices());
  size_t place = size_t(x - a.devices().begin());
  auto add = [&](std::string& text, const DeviceRef& device) {
    text += place == 0 ? fmt::format(" from {} on", device.to_string())
                       : fmt::format(" with {} at place {}", device.to_string(), place);
  };
  add(texts.first, *x);
  add(texts.second, *y);
  return texts;
}

Mesh Mesh::from_payload(const std::shared_ptr<const void>& payload) {
  return Mesh(std::static_pointer_cast<const Data>(payload));
}

std::string Placement::to_string() const {
  switch (kind) {
    case Kind::Shard:
      if (parts) return fmt::format("Shard({}, {{{}}})", dim, fmt::join(*parts, ", "));
      return fmt::format("Shard({})", dim);
    case Kind::Partial:
      return fmt::format("Partial({})", name(op));
    default:
      return "Replicate";
  }
}

Placement Shard(int dim, const Dims& sizes) {
  return {Placement::Kind::Shard, dim, ReduceOp::Sum, interned_parts(sizes)};
}

const Dims* interned_parts(const Dims& sizes) {
  static std::mutex mutex;
  static auto& known = *new std::set<Dims>;  // their addresses stay
  std::lock_guard lock(mutex);
  return &*known.insert(sizes).first;
}

Sharding replicated(const Mesh& mesh) { return {mesh, std::vector<Placement>(mesh.axes().size())}; }

UOp place(const UOp& x, const Sharding& where) { return place_as(x.dtype(), x, where); }

UOp place_as(DType type, const UOp& x, const Sharding& where) {
  Dims arg{where.mesh.id()};
  for (const Placement& p : where.placements)
    arg.insert(arg.end(), {int64_t(p.kind), p.dim, int64_t(p.op)});
  // Then, where there are parts, how many each placement has, and their sizes.
  for (size_t a = 0; where.has_parts() && a < where.placements.size(); ++a) {
    const Dims* parts = where.placements[a].parts;
    arg.push_back(parts ? int64_t(parts->size()) : 0);
    if (parts) arg.insert(arg.end(), parts->begin(), parts->end());
  }
  return UOp::make(Op::Redistribute, type, {x}, arg, where.mesh.payload());
}

Sharding placement_of(const Node& redistribute) {
  Sharding where = replicated(Mesh::from_payload(redistribute.payload));
  auto arg = redistribute.arg();
  for (size_t a = 0; a < where.placements.size(); ++a) {
    where.placements[a] = {Placement::Kind(arg[1 + 3 * a]), int(arg[2 + 3 * a]),
                           ReduceOp(arg[3 + 3 * a]), nullptr};
  }
  size_t next = 1 + 3 * where.placements.size();
  for (size_t a = 0; next < arg.size(); ++a) {
    const auto count = size_t(arg[next++]);
    if (count == 0) continue;
    where.placements[a].parts =
        interned_parts(Dims(arg.begin() + int64_t(next), arg.begin() + int64_t(next + count)));
    next += count;
  }
  return where;
}

bool Sharding::is_replicated() const {
  return std::ranges::all_of(placements, &Placement::is_replicate);
}

bool Sharding::has_parts() const {
  return std::ranges::any_of(placements, [](const Placement& p) { return p.parts != nullptr; });
}

Dims Sharding::local_shape(DimSpan global) const {
  Dims parts(global.size(), 1), local(global.begin(), global.end());
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_shard()) parts[placements[a].dim] *= mesh.axes()[a].size;
  }
  for (size_t i = 0; i < local.size(); ++i) local[i] = (local[i] + parts[i] - 1) / parts[i];
  return local;
}

std::string Sharding::to_string() const {
  std::string text = mesh.to_string();
  for (size_t a = 0; a < placements.size(); ++a)
    text += " " + mesh.axes()[a].name + ":" + placements[a].to_string();
  return text;
}

}  // namespace tinyshard
