// Values given and taken by their parts: what each device of this process holds, without the rest.
#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/origin.h"
#include "core/base/sizes.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/state.h"
#include "core/exec/transfer.h"
#include "core/tensor/value_internal.h"
#include "multi/local_box.h"

namespace tinyshard {
namespace {

void need_no_capture() {
  if (current_capture())
    fail("parts cannot be taken or given inside a captured step: there are no values yet");
}

Storage& storage_of(const Tensor& realized) {
  return *Storage::of(**stored_node(realized.state()->value));
}

// The device as one of this process alone.
Mesh mesh_of(DeviceRef device) {
  device.rank = DeviceRef::kHere;
  return Mesh::single(device);
}

// Sizes of the whole where all parts are as large as this one.
Dims whole_of(const Tensor& part, const Sharding& where) {
  Dims shape = part.shape();
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard()) continue;
    int64_t& size = shape[static_cast<size_t>(where.placements[a].dim)];
    size = limited(__int128{size} * where.mesh.axes()[a].size);
  }
  return shape;
}

// The share of a value that a device of the mesh holds: a box, and which terms of pending sums.
struct Held {
  LocalBox box;
  std::vector<int64_t> terms;
  bool operator==(const Held&) const = default;
};

Held held_by(const Sharding& where, const Dims& whole, int position) {
  Held held{local_box(where, whole, position), {}};
  const std::vector<int64_t> place = where.mesh.coordinates(position);
  for (size_t a = 0; a < place.size(); ++a) {
    if (where.placements[a].is_partial()) held.terms.push_back(place[a]);
  }
  return held;
}

// Devices that hold the same part must be given the same.
void check_equal_copies(const std::vector<Tensor>& parts, const std::vector<Held>& boxes) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto first = static_cast<size_t>(std::ranges::find(boxes, boxes[i]) - boxes.begin());
    if (first == i || product(boxes[i].box.size) == 0 || parts[first].data() == parts[i].data())
      continue;
    fail(fmt::format("parts {} and {} are copies of one part of the whole, but differ", first, i));
  }
}

// Unlike shard(), it may be given terms of a sum, or of another reduction.
std::vector<Placement> with_terms(const Mesh& mesh, std::vector<AxisPlacement> placements,
                                  int64_t dims, const std::string& about) {
  const std::vector<AxisPlacement> asked = placements;
  for (auto& [axis, placement] : placements) {
    if (placement.is_partial()) placement = Replicate;
  }
  std::vector<Placement> where = value::placements_of(mesh, placements, dims, about);
  for (const auto& [axis, placement] : asked) {
    if (placement.is_partial()) where[static_cast<size_t>(mesh.axis(axis))] = placement;
  }
  return where;
}

// Lists what ranks have to give alike: one type and size of the whole, and one part to all devices
// that hold the same.
std::vector<Given> given_by(const Storage& whole, const std::vector<Tensor>& parts,
                            const std::vector<Held>& boxes) {
  Ledgers& ledgers = Context::get().ledgers();
  const Sharding& where = whole.sharding;
  Ledger* all = ledgers.of(where.mesh);
  if (!all) return {};
  const std::string line = origin_of(origin_of_call()).source();
  const auto told = [&](const Tensor* part) {
    return fmt::format("{} of from_local{}", part ? "part " + part->describe() : "a shape",
                       line.empty() ? "" : " (" + line + ")");
  };
  uint64_t type = combine(static_cast<uint64_t>(whole.dtype()), hash_text(where.to_string()));
  for (int64_t size : whole.shape()) type = combine(type, static_cast<uint64_t>(size));
  std::vector<Given> given{
      {all, type, GivenValue::Kind::Part, told(parts.empty() ? nullptr : &parts[0])}};
  const auto repeats = [&](size_t a) {
    return where.placements[a].is_replicate() && where.mesh.axes()[a].size > 1;
  };
  bool copies = false;
  for (size_t a = 0; a < where.placements.size(); ++a) copies = copies || repeats(a);
  for (size_t i = 0; copies && i < parts.size(); ++i) {
    std::vector<int> ranks;
    for (int p = 0; p < int(where.mesh.size()); ++p) {
      if (held_by(where, whole.shape(), p) == boxes[i])
        ranks.push_back(where.mesh.devices()[size_t(p)].rank);
    }
    Ledger* ledger = ledgers.of(std::move(ranks));
    const auto first = size_t(std::ranges::find(boxes, boxes[i]) - boxes.begin());
    if (!ledger || first != i) continue;
    const uint64_t hash = storage_of(parts[i]).content_hash();
    if (hash != 0) given.push_back({ledger, hash, GivenValue::Kind::Copy, told(&parts[i])});
  }
  return given;
}

// Writes it down, or leaves it with the value for the thread that does.
void give(Storage& whole, std::vector<Given> given) {
  Context& context = Context::get();
  if (!context.ledgers().written_here()) return whole.give(std::move(given));
  for (const Given& each : given) context.ledgers().add(each);
  const Origin& from = origin_of(origin_of_call());
  context.compare_ledgers(
      fmt::format("{}{}", from.op, from.line == 0 ? "" : " (" + from.source() + ")"));
}

}  // namespace

Tensor Tensor::from_local(const Mesh& mesh, const std::vector<AxisPlacement>& placements,
                          const std::vector<Tensor>& parts, const std::optional<Ints>& shape,
                          std::optional<DType> dtype, Caller caller) {
  Call call("from_local", caller);
  need_no_capture();
  const Context::Use use;
  const std::vector<int> positions = Context::get().local_positions(mesh);
  if (parts.size() != positions.size())
    fail(fmt::format("{} parts for {} devices of {} that this process holds", parts.size(),
                     positions.size(), mesh.to_string()));
  if (parts.empty() && !shape)
    fail(
        fmt::format("this process holds no device of {}: it gives no parts, but the shape of the "
                    "whole, as in from_local(mesh, placements, {{}}, shape, dtype)",
                    mesh.to_string()));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) fail(fmt::format("part {} is no tensor", i));
    const Mesh at = parts[i].sharding().mesh;
    if (at.size() > 1)
      fail(fmt::format("part {}, {}, lies on {}; a part is on one device", i, parts[i].describe(),
                       at.to_string()));
    need_device_of(at);
    if (dtype && parts[i].dtype() != *dtype)
      fail(fmt::format("part {} is {}, where {} is asked for", i, parts[i].describe(),
                       name(*dtype)));
    if (parts[i].dtype() != parts[0].dtype())
      fail(fmt::format("part 0 is {} and part {} is {}", parts[0].describe(), i,
                       parts[i].describe()));
  }
  const DType type = dtype.value_or(parts.empty() ? default_float() : parts[0].dtype());
  const int64_t dims = shape ? static_cast<int64_t>(shape->values.size()) : parts[0].ndim();
  const std::string about = parts.empty()
                                ? std::string(name(type)) + value::shape_text(shape->values)
                                : parts[0].describe();
  const Sharding where{mesh, with_terms(mesh, placements, dims, about)};
  if (where.has_parts())
    fail(fmt::format("parts are given as slices of the whole, which {} has none of",
                     where.to_string()));
  const Dims whole = shape ? shape->values : whole_of(parts[0], where);
  if (std::ranges::any_of(whole, [](int64_t size) { return size < 0; }))
    fail(fmt::format("a shape has no negative sizes: {}", tinyshard::to_string(whole)));
  check_size(whole, type);
  std::vector<Held> boxes;
  for (size_t i = 0; i < parts.size(); ++i) {
    boxes.push_back(held_by(where, whole, positions[i]));
    if (parts[i].shape() != boxes[i].box.size)
      fail(fmt::format("part {} is {}, but {} holds {} of the whole {}", i, parts[i].describe(),
                       mesh.devices()[static_cast<size_t>(positions[i])].to_string(),
                       value::shape_text(boxes[i].box.size), value::shape_text(whole)));
  }

  std::vector<Tensor> here;  // each on the device that is to hold it
  for (size_t i = 0; i < parts.size(); ++i) {
    const DeviceRef& device = mesh.devices()[static_cast<size_t>(positions[i])];
    here.push_back(parts[i].detach().shard_like(replicated(mesh_of(device))));
  }
  Tensor::realize(here);
  check_equal_copies(here, boxes);

  value::note_placement(where);
  const UOp buffer = empty_buffer(whole, type, where);
  const Context::Turn turn;
  Storage& storage = *Storage::of(*buffer);
  for (size_t i = 0; i < here.size() && storage.local_bytes() > 0; ++i) {
    if (product(boxes[i].box.size) == 0) {
      const std::vector<std::byte> zeros(storage.local_bytes());
      storage.devices()[i]->copy_in(storage.memory()[i], zeros.data(), zeros.size());
      continue;
    }
    Storage& from = storage_of(here[i]);
    // Elements beyond the part are padding, which reads as zero.
    const Box box{boxes[i].box.size, Dims(whole.size()), storage.local_shape(),
                  itemsize(storage.dtype())};
    copy_box(box, *from.devices()[0], from.memory_to_copy()[0], *storage.devices()[i],
             storage.memory()[i]);
  }
  if (Context::get().ranks() > 1) give(storage, given_by(storage, here, boxes));
  return Tensor(make_state(buffer));
}

std::vector<Tensor> Tensor::local(Caller caller) const {
  Call call("local", caller);
  need_no_capture();
  const Context::Use use;
  Sharding where = sharding();
  std::ranges::replace_if(where.placements, &Placement::is_partial, Replicate);
  const Tensor complete = where == sharding() ? *this : shard_like(where);
  complete.realize();

  const Context::Turn turn;
  Storage& storage = storage_of(complete);
  const std::vector<int> positions = Context::get().local_positions(where.mesh);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < positions.size(); ++i) {
    const LocalBox part = local_box(where, storage.shape(), positions[i]);
    const DeviceRef& device = where.mesh.devices()[static_cast<size_t>(positions[i])];
    const UOp buffer = empty_buffer(part.size, storage.dtype(), replicated(mesh_of(device)));
    Storage& to = *Storage::of(*buffer);
    if (to.local_bytes() > 0) {
      const Box box{storage.local_shape(), Dims(part.size.size()), part.size,
                    itemsize(storage.dtype())};
      copy_box(box, *storage.devices()[i], storage.memory_to_copy()[i], *to.devices()[0],
               to.memory()[0]);
    }
    parts.push_back(Tensor(make_state(buffer)));
  }
  return parts;
}

}  // namespace tinyshard
