// Layers divided over the devices of an axis: each holds some columns or rows of a weight, computes
// with these, and sums meet once per pair of layers.
//
//   nn::tensor_parallel(llama, mesh, "model", {
//       {"layers.*.wq|wk|wv|w1|w3", Column}, {"layers.*.wo|w2", Row}, {"embed|head", Vocabulary}});
//   nn::fully_shard(llama, mesh, "data");      // may follow, over another axis
//
//   x.linear(w1) on "model":2     each device: x @ [half of the columns], no communication
//   .linear(w2) of that           each device: [half of the rows], a pending sum: one all-reduce
#pragma once
#include <string>
#include <vector>

#include "core/nn/state_dict.h"

namespace tinyshard::nn {

enum class TensorSplit {
  Column,      // outputs are divided, and so is the bias
  Row,         // inputs are divided, and the bias is whole
  Vocabulary,  // rows of a table by number: embeddings, and the head that gives the logits
};

struct TensorParallelRule {
  std::string names;  // what begins so (core/nn/name_pattern.h), weights and biases
  TensorSplit split;
  bool inputs_first = false;  // the weight is [in, out], not [out, in] as in nn::Linear
  // The sizes, or their ratio, of what a weight is made up of that is several in one, such as [q,
  // k, v] or [gate, up], in the order of the outputs. Each is divided by itself. With Column only.
  std::vector<int64_t> parts = {};
};

// Places every tensor on the mesh: those that a rule names as it says, the others whole along that
// axis, and so is what is one number and no parameter, such as the count of a BatchNorm. Along other
// axes they stay as they are. Sizes need not divide, but only whole heads keep
// attention local. A weight that is several in one is divided as it lies, by heads where rows go by
// heads first ([heads, 3, head]); with `parts` each of them is, and slices of the result that take
// parts send nothing (multi/joined_parts.h). Names, shapes and values stay what they are. UserError
// for a rule that names nothing, a name of two rules, a dim with fewer elements than the axis has
// devices, parts that do not divide, and a tensor on another mesh.
void tensor_parallel(const StateDict& tensors, const Mesh& mesh, const std::string& axis,
                     const std::vector<TensorParallelRule>& rules,
                     Caller caller = Caller::current());

// x, [batch, sequence, width], divided along its sequence over the axis of tensor_parallel, and
// along other axes as it lies: for the values between embedding and blocks. Residuals, norms and
// dropout then run on parts; each all-reduce becomes a reduce-scatter and an all-gather, which send
// as much. Sizes need not divide. UserError for a dim that x does not have, or that another axis
// divides.
Tensor sequence_parallel(const Tensor& x, const Mesh& mesh, const std::string& axis,
                         int64_t dim = 1, Caller caller = Caller::current());

template <class Model>
void tensor_parallel(const Model& model, const Mesh& mesh, const std::string& axis,
                     const std::vector<TensorParallelRule>& rules,
                     Caller caller = Caller::current()) {
  parameters(model);  // plans and errors know them by their names
  tensor_parallel(state_dict(model), mesh, axis, rules, caller);
}

}  // namespace tinyshard::nn

namespace tinyshard {
using enum nn::TensorSplit;
}  // namespace tinyshard
