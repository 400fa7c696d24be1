// The helpers that place models have this in common.
#pragma once
#include <string>

#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// Where the tensor of that name lies by now, as the helper of a mesh takes it: on the mesh, whole
// where it is on one device; or on a part of the mesh, Mesh::at of one axis, if it was put there, as
// stages of a pipeline are. Fails the running call (UserError) where it lies on another mesh.
Sharding place_on(const Mesh& mesh, const std::string& name, const Tensor& t);

}  // namespace tinyshard::nn
