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
  Tensor zeros =
      hidden.defined() ? Tensor() : Tensor::zeros({x.shape(0), weight_hh.shape(1)}, x.dtype());
  Tensor gates = x.linear(weight_ih.T(), bias_ih) +
                 (hidden.defined() ? hidden : zeros).linear(weight_hh.T(), bias_hh);
  std::vector<Tensor> gate = gates.chunk(4, 1);
  Tensor new_cell =
      gate[1].sigmoid() * (cell.defined() ? cell : zeros) + gate[0].sigmoid() * gate[2].tanh();
  return {gate[3].sigmoid() * new_cell.tanh(), new_cell};
}

}  // namespace tinyshard::nn
