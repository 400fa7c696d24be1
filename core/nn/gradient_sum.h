// Gradient accumulation: one optimizer step for several backward passes, so that a batch may be
// larger than what fits at once.
//
//   nn::GradientSum sum(optim.params());
//   Jit part = [&](Tensor batch) {             // called n times a step
//     TrainingMode on;
//     optim.zero_grad();
//     Tensor loss = model.loss(batch).backward();
//     sum.add();
//     return loss;
//   };
//   Jit update = [&] {                         // then once
//     TrainingMode on;
//     sum.take(1.0 / n);
//     optim.step();
//   };
#pragma once
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// Sums are kept in f32 for f32 and narrower parameters, f64 for f64. On a mesh each device keeps
// the sum of its own terms: they meet once a step, when the sums are taken. The gradient of a batch
// that all devices have, where the first one was divided, is a term of the first device. Of
// parameters that are fully sharded it keeps its part of the sum: terms meet at each add().
class GradientSum {
 public:
  explicit GradientSum(std::vector<Tensor> params) : params_(std::move(params)) {}

  // Adds the gradients that backward() left in the parameters, and takes them away there. UserError
  // for a parameter without one.
  void add(Caller caller = Caller::current());
  // Makes the sums times `scale` the gradients of the parameters, and begins anew from zero.
  // UserError when nothing was ever added.
  void take(double scale, Caller caller = Caller::current());

 private:
  void make_sums(const std::vector<Tensor>& gradients);

  std::vector<Tensor> params_, sums_;
  std::vector<Sharding> places_;  // of the sums: those of the first gradients, pending or not
};

}  // namespace tinyshard::nn
