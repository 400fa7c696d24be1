// A function with a gradient of its own.
//
//   // Rounds, and lets gradients through as if it had not.
//   struct StraightThrough : Function {
//     Tensor forward(const std::vector<Tensor>& x) override { return x[0].round(); }
//     std::vector<Tensor> backward(const Tensor& gradient) override { return {gradient}; }
//   };
//   Tensor y = Function::apply<StraightThrough>({x});
//
// The value is that of forward(). What arrives at it goes to the inputs as backward() says, and nowhere
// else: a tensor that forward() reads besides its inputs gets no gradient through it. A function that
// backward() needs something from keeps it in a member: one object belongs to each apply(), for as long as
// its result is part of a graph.
//
// It is part of the graph as any other value: captured steps replay both directions, sharded inputs
// stay sharded as far as the ops of both go, in shard_map each device has its own, and the gradient of a
// gradient goes through the ops of backward().
//
// Threads: forward() runs in the thread that calls apply(), backward() in the thread that calls backward() or
// gradient(), once for each such call.
#pragma once
#include <concepts>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard {

class Function {
 public:
  virtual ~Function() = default;
  virtual Tensor forward(const std::vector<Tensor>& inputs) = 0;
  // The gradients of the inputs, each of the type and shape of its input, for one that has those of the
  // result. A Tensor that is not defined() stands for none. UserError otherwise, naming the function
  // and the input.
  virtual std::vector<Tensor> backward(const Tensor& gradient) = 0;

  // The inputs of a call, with its line.
  struct Inputs {
    std::vector<Tensor> tensors;
    Caller caller;
    Inputs(std::initializer_list<Tensor> t, Caller c = Caller::current())  // NOLINT
        : tensors(t), caller(c) {}
    Inputs(std::vector<Tensor> t, Caller c = Caller::current())  // NOLINT
        : tensors(std::move(t)), caller(c) {}
  };

  // forward() of a new F that is made from `arguments`.
  template <std::derived_from<Function> F, class... Argument>
  static Tensor apply(const Inputs& inputs, Argument&&... arguments) {
    return apply(std::make_shared<F>(std::forward<Argument>(arguments)...), inputs);
  }
  static Tensor apply(std::shared_ptr<Function> function, const Inputs& inputs);
};

}  // namespace tinyshard
