// Two walks over the names: first those that a rule knows, then the others, as a tied tensor has
// several names and any of them may be the one of the rule. All placements are known, and all mistakes
// told, before the first tensor moves.
#include "core/nn/tensor_parallel.h"

#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/call.h"
#include "core/nn/name_pattern.h"
#include "core/nn/placement.h"

namespace tinyshard::nn {
namespace {

// Sizes in which a dim of that size is divided by the ratio of a rule.
Dims sizes_of_parts(const TensorParallelRule& rule, const std::string& name, const Tensor& t,
                    int dim, const MeshAxis& axis) {
  const int64_t size = t.shape(dim);
  __int128 sum = 0;
  for (int64_t part : rule.parts) sum += part;
  Dims sizes;
  for (int64_t part : rule.parts) {
    const __int128 share = __int128{size} * part;
    if (share % sum != 0 || share / sum % axis.size != 0)
      fail(fmt::format(
          "{}, {}, has {} along dim {}, which parts of {} do not divide into multiples "
          "of the {} devices along \"{}\"",
          name, t.describe(), size, dim, fmt::join(rule.parts, " : "), axis.size, axis.name));
    sizes.push_back(static_cast<int64_t>(share / sum));
  }
  return sizes;
}

void check_parts(const TensorParallelRule& rule) {
  if (rule.parts.empty()) return;
  if (rule.split != Column)
    fail(fmt::format("\"{}\" has parts, which only Column divides", rule.names));
  for (int64_t part : rule.parts) {
    if (part < 1)
      fail(
          fmt::format("\"{}\" has a part of {}; parts are sizes or their ratio", rule.names, part));
  }
}

// Along the axis, of a weight or, with one dim, of a bias.
Placement placement_by(const TensorParallelRule& rule, int64_t dims) {
  if (dims == 0) return Replicate;
  if (dims == 1) return rule.split == Row ? Replicate : Shard(0);
  const bool first = (rule.split == Row) == rule.inputs_first;
  return Shard(first ? 0 : 1);
}

}  // namespace

void tensor_parallel(const StateDict& tensors, const Mesh& mesh, const std::string& axis_name,
                     const std::vector<TensorParallelRule>& rules, Caller caller) {
  Call call("tensor_parallel", caller);
  mesh.axis(axis_name);  // checks the name
  std::vector<NamePattern> patterns;
  for (const TensorParallelRule& rule : rules) {
    check_parts(rule);
    patterns.emplace_back(rule.names);
  }
  std::vector<bool> used(rules.size());

  struct Placing {
    Tensor tensor;
    Sharding where;
    bool stays;
  };
  std::vector<Placing> placings;
  std::set<const TensorState*> known;
  // A tied tensor has several names, of which any may be the one that a rule knows.
  for (const bool by_rules : {true, false}) {
    for (const auto& [name, tensor] : tensors) {
      const TensorParallelRule* rule = nullptr;
      for (size_t i = 0; i < rules.size(); ++i) {
        if (!patterns[i].matches(name)) continue;
        if (rule)
          fail(fmt::format("{} is named by \"{}\" and by \"{}\"", name, rule->names,
                           rules[i].names));
        rule = &rules[i];
        used[i] = true;
      }
      if (by_rules != (rule != nullptr)) continue;
      Sharding where = place_on(mesh, name, tensor);
      std::vector<Placement>& places = where.placements;
      const auto axis = size_t(where.mesh.axis(axis_name));
      const int64_t devices = where.mesh.axes()[axis].size;
      // A number that a layer keeps beside its weights, such as how many batches a norm has seen.
      const bool one = !tensor.is_param() && tensor.numel() == 1;
      if (rule && !one) places[axis] = placement_by(*rule, tensor.ndim());
      if (places[axis].is_shard() && rule) {
        const int64_t size = tensor.shape(places[axis].dim);
        if (size < devices)
          fail(
              fmt::format("{}, {}, has {} along dim {}, which is not enough for {} devices along "
                          "\"{}\"",
                          name, tensor.describe(), size, places[axis].dim, devices, axis_name));
        if (rule->parts.size() > 1 && devices > 1)
          places[axis] =
              Shard(places[axis].dim,
                    sizes_of_parts(*rule, name, tensor, places[axis].dim, where.mesh.axes()[axis]));
      }
      if (known.insert(tensor.state().get()).second)
        placings.push_back({tensor, std::move(where), rule != nullptr});
    }
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    if (used[i]) continue;
    fail(fmt::format("no name begins with \"{}\"; the first of {} is {}", rules[i].names,
                     tensors.size(), tensors.empty() ? "none" : tensors.begin()->first));
  }
  for (const Placing& p : placings) {
    p.tensor.replace(p.tensor.shard_like(p.where));
    if (p.stays) p.tensor.state()->set_stays();
  }
}

Tensor sequence_parallel(const Tensor& x, const Mesh& mesh, const std::string& axis_name,
                         int64_t dim, Caller caller) {
  Call call("sequence_parallel", caller);
  mesh.axis(axis_name);  // checks the name
  if (dim < -x.ndim() || dim >= x.ndim()) fail(fmt::format("{} has no dim {}", x.describe(), dim));
  const auto split = static_cast<int>(dim < 0 ? dim + x.ndim() : dim);
  Sharding where = place_on(mesh, "x", x);
  const auto axis = static_cast<size_t>(where.mesh.axis(axis_name));
  std::vector<Placement>& places = where.placements;
  for (size_t a = 0; a < places.size(); ++a) {
    // The only device of an axis has all of a dim, be the placement called a part or not.
    if (places[a].is_partial() || a == axis || where.mesh.axes()[a].size == 1)
      places[a] = Replicate;
    if (places[a].is_shard() && places[a].dim == split)
      fail(fmt::format("dim {} of {} is divided over \"{}\" already", split, x.describe(),
                       where.mesh.axes()[a].name));
  }
  places[axis] = Shard(split);
  return x.shard_like(where);
}

}  // namespace tinyshard::nn
