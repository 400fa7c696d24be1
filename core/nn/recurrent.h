// Recurrent cells.
#pragma once
#include <cstdint>
#include <utility>

#include "core/nn/linear.h"

namespace tinyshard::nn {

// The step of a long short-term memory. Gates are in the order input, forget, cell, output.
struct LSTMCell {
  LSTMCell(int64_t input_size, int64_t hidden_size, const BiasOption& options = {});

  // (hidden, cell) after x of [batch, input_size], in x's type; without a state before, it is zero.
  std::pair<Tensor, Tensor> operator()(const Tensor& x, const Tensor& hidden = {},
                                       const Tensor& cell = {},
                                       Caller caller = Caller::current()) const;

  Tensor weight_ih, weight_hh, bias_ih, bias_hh;
  TS_FIELDS(weight_ih, weight_hh, bias_ih, bias_hh)
};

}  // namespace tinyshard::nn
