// Training a model that fits no single device: each holds a part of every parameter, of its gradient
// and of the optimizer's state.
//
//   Mesh mesh = Mesh::world({{"data", -1}});
//   nn::fully_shard(model, mesh, "data");                  // before the optimizer is made
//   nn::optim::AdamW optim(nn::parameters(model), {});
//
// A parameter is put together on each device shortly before its block is used, dropped afterwards,
// and put together again for the backward pass; gradients leave as reduce-scatters. For each
// parameter a step sends three times what one device lacks of it: nothing more than two thirds
// beyond data_parallel. See docs/shard.md.
#pragma once
#include <string>

#include "core/nn/state_dict.h"

namespace tinyshard::nn {

struct FullyShardOptions {
  // Which parameters come and go together: the beginnings of names that this pattern matches
  // (core/nn/name_pattern.h). Empty: elements of lists, which is "h.*" for a field `h` of layers.
  // What is in no block is gathered where it is read.
  std::string blocks = {};
  int prefetch = 1;  // blocks gathered ahead of the one in use: that many more are whole at a time
  bool frozen = true;  // divides what is_param_(false) was said of, too
  bool keep = false;   // gathered values live until the backward pass: less sent, more memory
};

// Divides every parameter along the dim that wastes least, over `axis`; other axes stay as they
// are, so tensor_parallel comes first. A parameter of which no dim has as many elements as the axis
// devices is copied to each device. So are buffers, such as running statistics: tensors of which
// is_param_() was never said. Weights that is_param_(false) froze, before or after, are divided as
// they would be in training. UserError for a
// tensor on another mesh or divided over the axis already, and for blocks that match no name.
void fully_shard(const StateDict& tensors, const Mesh& mesh, const std::string& axis = "data",
                 const FullyShardOptions& options = {}, Caller caller = Caller::current());

template <class Model>
void fully_shard(const Model& model, const Mesh& mesh, const std::string& axis = "data",
                 const FullyShardOptions& options = {}, Caller caller = Caller::current()) {
  parameters(model);  // plans and errors know them by their names
  fully_shard(state_dict(model), mesh, axis, options, caller);
}

}  // namespace tinyshard::nn
