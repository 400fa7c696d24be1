// What the helpers that place models have in common.
#pragma once
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// How the tensor of that name lies on the mesh by now: whole where it is on one device. Fails the
// running call (UserError) where it lies on another mesh.
std::vector<Placement> placements_on(const Mesh& mesh, const std::string& name, const Tensor& t);

}  // namespace tinyshard::nn
