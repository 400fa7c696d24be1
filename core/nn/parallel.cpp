// Parameters are copied to all devices; a batch that the program divides then divides the work, and
// the sums over devices that gradients need follow from the sharding rules.
#include "core/nn/parallel.h"

#include "core/base/call.h"

namespace tinyshard::nn {

void data_parallel(const StateDict& tensors, const Mesh& mesh, const std::string& axis,
                   Caller caller) {
  Call call("data_parallel", caller);
  if (mesh.is_single()) return;
  mesh.axis(axis);  // checks the name
  for (const auto& [name, tensor] : tensors) tensor.replace(tensor.shard(mesh));
}

}  // namespace tinyshard::nn
