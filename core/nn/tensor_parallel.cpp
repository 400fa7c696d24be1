#include "core/nn/tensor_parallel.h"

#include <set>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/name_pattern.h"
#include "core/nn/placement.h"

namespace tinyshard::nn {
namespace {

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
  const size_t axis = size_t(mesh.axis(axis_name));
  const int64_t devices = mesh.axes()[axis].size;
  std::vector<NamePattern> patterns;
  for (const TensorParallelRule& rule : rules) patterns.emplace_back(rule.names);
  std::vector<bool> used(rules.size());

  struct Placing {
    Tensor tensor;
    std::vector<Placement> places;
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
      std::vector<Placement> places = placements_on(mesh, name, tensor);
      if (rule) places[axis] = placement_by(*rule, tensor.ndim());
      if (places[axis].is_shard() && rule) {
        const int64_t size = tensor.shape(places[axis].dim);
        if (size < devices)
          fail(
              fmt::format("{}, {}, has {} along dim {}, which is not enough for {} devices along "
                          "\"{}\"",
                          name, tensor.describe(), size, places[axis].dim, devices, axis_name));
      }
      if (known.insert(tensor.state().get()).second)
        placings.push_back({tensor, std::move(places)});
    }
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    if (used[i]) continue;
    fail(fmt::format("no name begins with \"{}\"; the first of {} is {}", rules[i].names,
                     tensors.size(), tensors.empty() ? "none" : tensors.begin()->first));
  }
  for (const Placing& p : placings) p.tensor.replace(p.tensor.shard_like(Sharding{mesh, p.places}));
}

}  // namespace tinyshard::nn
