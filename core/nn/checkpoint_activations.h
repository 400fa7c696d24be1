// Activation checkpointing: less memory for more arithmetic.
//
//   for (const Block& block : blocks) x = nn::checkpoint_activations(block, x);
//
// Values and gradients are those of block(x), to the bit. But of what the block computes on its way
// nothing is kept for the backward pass, only x: when the gradient of the result has come, the
// block is computed from x again. At most one block's intermediate values are then there at a time.
#pragma once
#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// y, of which the backward pass keeps nothing between it and `inputs`. What y was computed from
// besides (parameters, masks) is kept as it is; values assigned on the way are not assigned again.
Tensor recomputed_from(const Tensor& y, const std::vector<Tensor>& inputs,
                       Caller caller = Caller::current());

template <class F, class... Input>
Tensor checkpoint_activations(const F& f, const Input&... inputs) {
  return recomputed_from(f(inputs...), {inputs...});
}

}  // namespace tinyshard::nn
