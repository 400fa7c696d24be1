// A sum lies as the gradients did before their reduction over devices:
// as terms, which the devices keep. So adding moves no bytes, and the
// reduction happens once, when take() makes gradients of the sums.
#include "core/nn/gradient_sum.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/capture.h"
#include "core/exec/state.h"
#include "multi/rewrite.h"

namespace tinyshard::nn {

void GradientSum::add(Caller caller) {
  Call call("GradientSum::add", caller);
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor& p = params_[i];
    if (!p.grad().defined()) {
      fail(
          fmt::format("parameter {}, {}, has no gradient: call backward() first", i, p.describe()));
    }
    // The sum of a parameter that is whole only while it is read is never whole.
    Tensor g = p.state()->gather_on_use ? p.grad().shard_like(p) : p.grad();
    gradients.push_back(g.cast(accumulator(p.dtype())));
    p.set_grad({});
  }
  if (sums_.empty()) make_sums(gradients);
  for (size_t i = 0; i < sums_.size(); ++i) {
    // As the terms that the devices keep, also where a batch was not divided as the first one was.
    const Tensor terms(place(gradients[i].uop(), places_[i]));
    sums_[i].assign(sums_[i] + terms);
  }
  if (current_capture() == nullptr) Tensor::realize(sums_);
}

void GradientSum::make_sums(const std::vector<Tensor>& gradients) {
  std::vector<UOp> nodes;
  for (const Tensor& g : gradients) nodes.push_back(g.uop());
  LocalGraph local = to_local(nodes);
  CaptureScope outside(nullptr);  // zeros before the first step, not in each
  for (size_t i = 0; i < nodes.size(); ++i) {
    places_.push_back(local.pending[i]);
    UOp storage = empty_buffer(nodes[i].shape(), nodes[i].dtype(), places_[i]);
    sums_.emplace_back(storage);
    sums_.back().assign(Tensor::zeros(gradients[i].shape(), gradients[i].dtype()));
  }
  Tensor::realize(sums_);
}

void GradientSum::take(double scale, Caller caller) {
  Call call("GradientSum::take", caller);
  if (sums_.empty()) fail("there is no sum yet: call add() after backward() first");
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].set_grad((sums_[i] * scale).cast(params_[i].dtype()));
    sums_[i].assign(Tensor::zeros(params_[i].shape(), sums_[i].dtype()));
  }
}

}  // namespace tinyshard::nn
