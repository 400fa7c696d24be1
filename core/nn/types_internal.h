// The types of layers; core/nn/nn.h has the rule.
#pragma once
#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// A weight as a product with x reads it: in x's type. Integers have no type of weights.
inline Tensor weight_for(const Tensor& x, const Tensor& weight) {
  return weight.defined() && is_float(x.dtype()) ? weight.cast(x.dtype()) : weight;
}

// f(x in at least f32), rounded once to x's type.
template <class F>
Tensor in_wide(const Tensor& x, const F& f) {
  Tensor y = f(x.cast(accumulator(x.dtype())));
  return is_float(x.dtype()) ? y.cast(x.dtype()) : y;
}

}  // namespace tinyshard::nn
