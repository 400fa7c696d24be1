// Storages are made empty where the rules place them, and filled afterwards in one load: each
// process reads the parts of its own devices alone. The first rule that matches a name places it,
// though later ones count as used, so that a rule that matches nothing is found as an error.
#include "core/nn/load_hf.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/state.h"
#include "core/nn/name_pattern.h"
#include "multi/joined_parts.h"

namespace tinyshard::nn {
namespace {

Sharding sharding_by(const Mesh& mesh, const std::vector<AxisPlacement>& placements, size_t dims) {
  Sharding where = replicated(mesh);
  for (const auto& [axis, placement] : placements) {
    const auto a = static_cast<size_t>(mesh.axis(axis));
    if (placement.is_partial())
      fail(fmt::format("values of a file are no terms of a sum: {} along \"{}\"",
                       placement.to_string(), axis));
    Placement resolved = placement;
    if (resolved.is_shard() && resolved.dim < 0) resolved.dim += static_cast<int>(dims);
    if (resolved.is_shard() && (resolved.dim < 0 || resolved.dim >= static_cast<int>(dims)))
      continue;
    where.placements[a] = resolved;
  }
  return where;
}

}  // namespace

HfModel load_hf(const std::filesystem::path& folder, const Mesh& mesh,
                const std::vector<PlacementRule>& rules, const LoadOptions& options,
                Caller caller) {
  Call call("load_hf", caller);
  HfModel model{io::read_model_config(folder), {}};
  const StateDict stored = safe_load(folder);
  std::vector<NamePattern> patterns;
  for (const PlacementRule& rule : rules) patterns.emplace_back(rule.names);
  std::vector<bool> used(rules.size());
  for (const auto& [name, value] : stored) {
    Sharding where = replicated(mesh);
    bool placed = false;
    for (size_t r = 0; r < rules.size(); ++r) {
      if (!patterns[r].matches(name)) continue;
      used[r] = true;
      if (!placed) where = sharding_by(mesh, rules[r].placements, value.shape().size());
      placed = true;
    }
    where = with_checked_parts(std::move(where), value.shape(), name);
    Tensor t(empty_buffer(value.shape(), value.dtype(), where));
    t.state()->set_label(name);
    model.tensors.emplace(name, t);
  }
  for (size_t r = 0; r < rules.size(); ++r) {
    if (!used[r])
      fail(fmt::format("no tensor of {} has a name like \"{}\"", folder.native(), rules[r].names));
  }
  load(model.tensors, stored, options, caller);
  return model;
}

}  // namespace tinyshard::nn
