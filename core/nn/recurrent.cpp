// All four gates come from two products, of x and of the hidden
// state, as their weights lie below each other: rows 0 to hidden are
// those of the input gate. Sums and gates are wide and rounded once.
#include "core/nn/recurrent.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/bound_internal.h"

namespace tinyshard::nn {

LSTMCell::LSTMCell(int64_t input_size, int64_t hidden_size, const BiasOption& options) {
  double bound = uniform_bound(hidden_size);
  weight_ih = Tensor::uniform({4 * hidden_size, input_size}, -bound, bound).is_param_();
  weight_hh = Tensor::uniform({4 * hidden_size, hidden_size}, -bound, bound).is_param_();
  if (!options.bias) return;
  bias_ih = Tensor::zeros(4 * hidden_size).is_param_();
  bias_hh = Tensor::zeros(4 * hidden_size).is_param_();
}

std::pair<Tensor, Tensor> LSTMCell::operator()(const Tensor& x, const Tensor& hidden,
                                               const Tensor& cell, Caller caller) const {
  Call call("LSTMCell", caller);
  if (hidden.defined() != cell.defined()) {
    fail(fmt::format("a hidden state and a cell state come together, got only the {} state",
                     hidden.defined() ? "hidden" : "cell"));
  }
  // An x of integers is computed in the type that products with the weights have.
  DType type = is_float(x.dtype()) ? x.dtype() : promote(x.dtype(), weight_ih.dtype());
  DType wide = accumulator(type);
  auto product = [&](const Tensor& input, const Tensor& weight, const Tensor& bias) {
    Tensor sums = input.cast(type).matmul(weight.T().cast(type), wide);
    return bias.defined() ? sums + bias.cast(wide) : sums;
  };
  Tensor zeros =
      hidden.defined() ? Tensor() : Tensor::zeros({x.shape(0), weight_hh.shape(1)}, type);
  Tensor gates = product(x, weight_ih, bias_ih) +
                 product(hidden.defined() ? hidden : zeros, weight_hh, bias_hh);
  std::vector<Tensor> gate = gates.chunk(4, 1);
  Tensor old_cell = (cell.defined() ? cell : zeros).cast(wide);
  Tensor new_cell = gate[1].sigmoid() * old_cell + gate[0].sigmoid() * gate[2].tanh();
  return {(gate[3].sigmoid() * new_cell.tanh()).cast(type), new_cell.cast(type)};
}

}  // namespace tinyshard::nn
