#include "core/nn/placement.h"

#include <fmt/format.h>

#include "core/base/call.h"

namespace tinyshard::nn {

std::vector<Placement> placements_on(const Mesh& mesh, const std::string& name, const Tensor& t) {
  const Sharding now = t.sharding();
  if (now.mesh == mesh) return now.placements;
  if (now.mesh.size() > 1)
    fail(fmt::format("{}, {}, lies on {}, not on {}", name, t.describe(), now.mesh.to_string(),
                     mesh.to_string()));
  return std::vector<Placement>(mesh.axes().size());
}

}  // namespace tinyshard::nn
