// A Checkpoint node has the result and the inputs that it is computed from again as sources; the
// backward pass does the rest (core/passes/gradient.cpp).
#include "core/nn/checkpoint_activations.h"

#include "core/base/call.h"

namespace tinyshard::nn {

Tensor recomputed_from(const Tensor& y, const std::vector<Tensor>& inputs, Caller caller) {
  Call call("recomputed_from", caller);
  std::vector<UOp> sources{y.uop()};
  for (const Tensor& input : inputs) sources.push_back(input.uop());
  return Tensor(UOp::make(Op::Checkpoint, y.dtype(), sources));
}

}  // namespace tinyshard::nn
