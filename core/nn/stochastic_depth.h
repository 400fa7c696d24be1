// Leaves out a branch of a network for some rows of a batch, in TrainingMode.
//
//   x = x + nn::stochastic_depth(block(x), 0.1);
#pragma once
#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// Each row (along dim 0) becomes zeros with probability p, the others are divided by 1 - p.
Tensor stochastic_depth(const Tensor& x, double p, Caller caller = Caller::current());

}  // namespace tinyshard::nn
