// Placing a model over the devices of a mesh.
#pragma once
#include <string>

#include "core/nn/state_dict.h"

namespace tinyshard::nn {

// Puts a copy of every tensor on each device of the mesh, so that devices along `axis` can work on
// different parts of a batch: split the batch with x.shard(mesh, {{axis, Shard(0)}}), and the
// gradients of the parameters are summed over the axis. UserError names the axes that there are.
void data_parallel(const StateDict& tensors, const Mesh& mesh, const std::string& axis = "data",
                   Caller caller = Caller::current());

template <class Model>
void data_parallel(const Model& model, const Mesh& mesh, const std::string& axis = "data",
                   Caller caller = Caller::current()) {
  data_parallel(state_dict(model), mesh, axis, caller);
}

}  // namespace tinyshard::nn
