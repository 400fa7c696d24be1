// Placing the inputs of a case. A pending reduction cannot be made by hand, so it is a reduction: a
// value x is put on top of neutral elements, one layer per device, and the layers are split over
// the devices and reduced:
//
//   x, -0.0, -0.0, -0.0   split by 4   ->   sum(0) is x, pending, one term on each device
#include "tests/golden/where.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "tests/golden/golden_case.h"

namespace tinyshard::golden {
namespace {

std::vector<DeviceRef> devices_of(const std::string& kind, int64_t count) {
  std::vector<DeviceRef> found;
  if (world().ranks > 1) {  // of the whole job
    for (const DeviceRef& device : world().devices) {
      if (device.kind == kind && static_cast<int64_t>(found.size()) < count)
        found.push_back(device);
    }
    if (static_cast<int64_t>(found.size()) < count)
      throw UserError(fmt::format("{} devices of kind {} are wanted, the job has {}", count, kind,
                                  found.size()));
    return found;
  }
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("{}:{}", kind, i));
  return Mesh::of(names).devices();
}

}  // namespace

Where::Where(const std::string& kind, const std::vector<int64_t>& axes,
             const std::string& placement) {
  std::vector<MeshAxis> named;
  int64_t count = 1;
  for (const int64_t size : axes) {
    named.push_back({fmt::format("axis{}", named.size()), size});
    count *= size;
  }
  mesh_.emplace(named, devices_of(kind, count));
  if (placement == "replicate") return;
  how_ = placement == "shard:auto" ? How::Auto
         : placement == "uneven"   ? How::Uneven
         : placement == "partial"  ? How::Partial
                                   : How::Dim;
  if (how_ != How::Dim) return;
  const std::string prefix = "shard:";
  const char* end = placement.data() + placement.size();
  const char* begin = placement.starts_with(prefix) ? placement.data() + prefix.size() : end;
  const auto [rest, error] = std::from_chars(begin, end, dim_);
  if (begin == end || rest != end || error != std::errc{}) {
    throw UserError(fmt::format(
        "placement \"{}\" is none of replicate, shard:auto, shard:K, uneven, partial", placement));
  }
}

// Mesh axes get different dims as long as there are any; then they share them.
std::vector<AxisPlacement> Where::dims_of(const Tensor& x) const {
  const Dims shape = x.shape();
  const auto rank = static_cast<int64_t>(shape.size());
  std::vector<AxisPlacement> out;
  std::vector<bool> taken(shape.size());
  for (const MeshAxis& axis : mesh_->axes()) {
    if (rank == 0) break;
    int64_t chosen = 0;
    if (how_ == How::Dim) {
      chosen = ((dim_ + static_cast<int64_t>(out.size())) % rank + rank) % rank;
    } else {
      auto worth = [&](int64_t d) {
        const auto i = static_cast<size_t>(d);
        const bool divides = shape[i] > 0 && shape[i] % axis.size == 0;
        const bool wanted = shape[i] > 1 && divides == (how_ == How::Auto);
        return std::tuple(!taken[i], wanted, shape[i]);
      };
      for (int64_t d = 1; d < rank; ++d) {
        if (worth(d) > worth(chosen)) chosen = d;
      }
    }
    taken[static_cast<size_t>(chosen)] = true;
    out.emplace_back(axis.name, Shard(static_cast<int>(chosen)));
  }
  return out;
}

Tensor Where::partial(const Tensor& x) const {
  const auto axes = static_cast<int64_t>(mesh_->axes().size());
  Tensor layers = x;
  std::vector<AxisPlacement> placements;
  Dims reduced;
  Dims sizes;
  for (int64_t a = 0; a < axes; ++a) {
    layers = layers.unsqueeze(0);
    sizes.push_back(mesh_->axes()[static_cast<size_t>(a)].size);
    placements.emplace_back(mesh_->axes()[static_cast<size_t>(a)].name, Shard(static_cast<int>(a)));
    reduced.push_back(a);
  }
  // A maximum of copies where a sum would not do: that of integers has another type, and that of
  // -0.0 is 0.0, since sums begin with it.
  const std::vector<double> values = numbers(x);
  const bool negative_zero =
      std::any_of(values.begin(), values.end(), [](double v) { return v == 0 && std::signbit(v); });
  if (!x.is_floating_point() || negative_zero) {
    Dims shape = sizes;
    for (const int64_t size : x.shape()) shape.push_back(size);
    return layers.expand(shape).shard(*mesh_, placements).max(reduced);
  }
  Pairs padding;
  for (const int64_t size : sizes) padding.emplace_back(0, size - 1);
  for (int64_t d = 0; d < x.ndim(); ++d) padding.emplace_back(0, 0);
  return layers.pad(padding, -0.0).shard(*mesh_, placements).sum(reduced);
}

Tensor Where::put(const Tensor& x) const {
  if (!mesh_) return x;
  if (how_ == How::Replicate) return replicate(x);
  return how_ == How::Partial ? partial(x) : x.shard(*mesh_, dims_of(x));
}

Tensor Where::replicate(const Tensor& x) const { return mesh_ ? x.shard(*mesh_) : x; }

std::string Where::to_string() const { return mesh_ ? mesh_->to_string() : "the default device"; }

}  // namespace tinyshard::golden
