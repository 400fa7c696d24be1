// Where tensors live: sharding, moving, and how they describe themselves.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/state.h"
#include "core/tensor/value_internal.h"
#include "core/uop/graph.h"
#include "core/uop/sizes.h"
#include "multi/joined_parts.h"
#include "multi/rewrite.h"

namespace tinyshard {

using value::Value;

namespace {

std::atomic<bool> several{false};

// Single devices that were named before it was asked whether one of them is not the default: to name
// one does not begin the use of devices, which Runtime::configure() must come before.
struct Named {
  std::mutex mutex;
  std::vector<DeviceRef> devices;
};
Named& named_devices() {
  static Named named;
  return named;
}

Tensor placed(const Tensor& x, const Sharding& asked) {
  // To describe a value may take all of the sharding rules: only for those that can fail.
  const Sharding where =
      asked.has_parts() ? with_checked_parts(asked, x.shape(), x.describe()) : asked;
  value::note_placement(where);
  return Tensor(place(x.uop(), where));
}

}  // namespace

void value::note_placement(const Sharding& where) {
  if (several.load(std::memory_order_relaxed)) return;
  if (where.mesh.size() > 1) return several.store(true, std::memory_order_relaxed);
  Named& named = named_devices();
  const std::lock_guard lock(named.mutex);
  const DeviceRef& device = where.mesh.devices()[0];
  if (std::ranges::find(named.devices, device) == named.devices.end())
    named.devices.push_back(device);
}

bool value::placed_on_several() {
  if (world().devices.size() > 1 || several.load(std::memory_order_relaxed)) return true;
  const DeviceRef usual = default_mesh().devices()[0];
  Named& named = named_devices();
  const std::lock_guard lock(named.mutex);
  const bool other =
      std::ranges::any_of(named.devices, [&](const DeviceRef& d) { return !(d == usual); });
  if (other) several.store(true, std::memory_order_relaxed);
  return other;
}

std::vector<Placement> value::placements_of(const Mesh& mesh,
                                            const std::vector<AxisPlacement>& placements,
                                            int64_t dims, const std::string& what) {
  std::vector<Placement> out(mesh.axes().size());
  std::vector<bool> named(mesh.axes().size());
  for (const auto& [axis_name, placement] : placements) {
    size_t axis = mesh.axes().size();
    std::string known;
    for (size_t i = 0; i < mesh.axes().size(); ++i) {
      if (mesh.axes()[i].name == axis_name) axis = i;
      known += fmt::format("{}\"{}\"", i ? ", " : "", mesh.axes()[i].name);
    }
    if (axis == mesh.axes().size())
      fail(fmt::format("the mesh {} has no axis \"{}\"; its axes: {}", mesh.to_string(), axis_name,
                       known));
    if (named[axis]) fail(fmt::format("mesh axis \"{}\" is placed twice", axis_name));
    named[axis] = true;
    out[axis] = placement;
    if (placement.is_partial())
      fail(
          "a value is divided or copied, and not made a pending sum: products and sums become so, "
          "and from_local() takes the terms that each device has");
    if (placement.is_shard())
      out[axis].dim = static_cast<int>(value::resolve_axis(placement.dim, dims));
    if (placement.is_shard() && dims == 0) fail(fmt::format("{} has no dim to shard", what));
  }
  return out;
}

Tensor Tensor::shard(const Mesh& mesh, const std::vector<AxisPlacement>& placements,
                     Caller caller) const {
  Call call("shard", caller);
  // Only a number that is to be split is told of: to describe a value is to look at all that it is
  // made of.
  auto splits = [](const AxisPlacement& p) { return p.second.is_shard(); };
  const bool told = ndim() == 0 && std::ranges::any_of(placements, splits);
  const std::string what = told ? describe() : std::string();
  return placed(*this, {mesh, value::placements_of(mesh, placements, ndim(), what)});
}

Tensor Tensor::shard(const std::vector<std::string>& devices, std::optional<int64_t> axis,
                     Caller caller) const {
  Call call("shard", caller);
  if (devices.empty()) fail("no devices");
  Mesh mesh = Mesh::of(devices);
  if (!axis) return shard(mesh, {}, caller);
  int64_t dim = value::resolve_axis(*axis, ndim());
  return shard(mesh, {{mesh.axes()[0].name, Shard(static_cast<int>(dim))}}, caller);
}

Tensor Tensor::shard_like(const Sharding& sharding, Caller caller) const {
  Call call("shard_like", caller);
  for (const Placement& p : sharding.placements) {
    if (p.is_partial()) fail("the other tensor is partial: a pending reduction is no place");
    if (p.is_shard() && p.dim >= ndim())
      fail(fmt::format("{} has no dim {} to shard", describe(), p.dim));
  }
  return placed(*this, sharding);
}

Tensor Tensor::shard_like(const Tensor& other, Caller caller) const {
  Call call("shard_like", caller);
  if (!value::placed_on_several()) return Tensor(uop());
  Sharding target = other.sharding();
  for (Placement& p : target.placements) {
    if (p.is_partial()) p = Replicate;
  }
  // A tensor that was placed nowhere moves what was placed elsewhere, and nothing else.
  const bool at_home = target.mesh == default_mesh();
  if (at_home && sharding().mesh == default_mesh()) return Tensor(uop());
  return shard_like(target, caller);
}

Tensor Tensor::to(const std::string& device, Caller caller) const {
  Call call("to", caller);
  // The device is one of whichever process runs this: all ranks build the same graph.
  return placed(*this, replicated(Mesh::single(parse_device(device))));
}

TensorSharding Tensor::sharding() const {
  const UOp& node = uop();
  if (stored_node(node)) return {sharding_of(node), dtype(), shape()};
  default_mesh();  // the devices of this process are known from here on
  const UOp value = without_waits(node);
  return {to_local(std::span(&value, 1)).pending[0], dtype(), shape()};
}

std::vector<std::string> Tensor::devices() const {
  std::vector<std::string> names;
  for (const DeviceRef& device : sharding().mesh.devices()) names.push_back(device.to_string());
  return names;
}

std::string Tensor::device(Caller caller) const {
  Call call("device", caller);
  const std::vector<std::string> names = devices();
  if (names.size() == 1) return names[0];
  fail(
      fmt::format("{} is on {} devices, {} and others: devices() lists them, and x.shard_like(y) "
                  "brings another tensor there",
                  describe(), names.size(), names[0]));
}

std::string Tensor::describe() const {
  if (!state_) return "no tensor";
  const UOp& node = state_->value;
  std::string text = fmt::format("{}{}", name(node.dtype()), value::shape_text(node.shape()));
  if (const SymbolicShape* sizes = symbolic_shape(node)) {
    text = std::string(name(node.dtype())) + "[";
    for (size_t d = 0; d < sizes->dims.size(); ++d) {
      text += d ? ", " : "";
      if (sizes->dims[d]) text += sizes->dims[d]->text + " <= ";
      text += std::to_string(node.shape()[d]);
    }
    return text + "]";
  }
  if (!value::placed_on_several()) return text;
  try {
    text = TensorSharding{sharding_of(node), node.dtype(), shape()}.to_string();
    return text.substr(0, text.find("  "));
  } catch (const Error&) {
    return text;  // this is part of telling an error: the shape alone will do
  }
}

// f32[4096@data:4, 4096]  Partial(sum) over model:2
std::string TensorSharding::to_string() const {
  std::string text = std::string(name(dtype)) + "[", rest;
  const auto& axes = mesh.axes();
  for (size_t d = 0; d < shape.size(); ++d) {
    text += (d ? ", " : "") + std::to_string(shape[d]);
    for (size_t a = 0; a < axes.size(); ++a) {
      if (!placements[a].is_shard() || placements[a].dim != static_cast<int>(d)) continue;
      text += fmt::format("@{}:{}", axes[a].name, axes[a].size);
      if (placements[a].parts) text += fmt::format("({})", fmt::join(*placements[a].parts, " + "));
    }
  }
  for (size_t a = 0; a < axes.size(); ++a) {
    if (placements[a].is_partial())
      rest += fmt::format("  Partial({}) over {}:{}", name(placements[a].op), axes[a].name,
                          axes[a].size);
  }
  return text + "]" + rest;
}

std::ostream& operator<<(std::ostream& out, const TensorSharding& sharding) {
  return out << sharding.to_string();
}

}  // namespace tinyshard
