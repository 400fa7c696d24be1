// The types of layers; core/nn/nn.h has the rule.
#pragma once
#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// A weight as a product with x reads it: in x's type. Integers have no type of weights.
inline Tensor weight_for(const Tensor& x, const Tensor& weight) {
  const bool as_it_is = !weight.defined() || !is_float(x.dtype()) || weight.dtype() == x.dtype();
  return as_it_is ? weight : weight.cast(x.dtype());
}

// f(x in at least f32), rounded once to x's type.
template <class F>
Tensor in_wide(const Tensor& x, const F& f) {
  Tensor y = f(x.cast(accumulator(x.dtype())));
  return is_float(x.dtype()) ? y.cast(x.dtype()) : y;
}

}  // namespace tinyshard::nn
