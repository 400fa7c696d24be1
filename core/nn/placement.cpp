// A tensor on one device goes to the mesh whole. A tensor on a part of
// the mesh, a stage of a pipeline, stays there; a tensor on any other
// mesh was placed by somebody who wants it there, which is an error.
#include "core/nn/placement.h"

#include <fmt/format.h>

#include "core/base/call.h"

namespace tinyshard::nn {

Sharding place_on(const Mesh& mesh, const std::string& name, const Tensor& t) {
  Sharding now = t.sharding();
  const bool on_part = !now.mesh.axes().empty() && mesh.axis_left_out(now.mesh) >= 0;
  if (now.mesh == mesh || on_part) return now;
  if (now.mesh.size() > 1)
    fail(fmt::format("{}, {}, lies on {}, not on {}", name, t.describe(), now.mesh.to_string(),
                     mesh.to_string()));
  return replicated(mesh);
}

}  // namespace tinyshard::nn
