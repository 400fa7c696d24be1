// A program that trains a model takes its optimizer steps in one piece, or, with --accumulate, a captured
// part that is called for each batch and a captured update.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/parallel.h"

namespace training {

class Step {
 public:
  // Adds the gradients of the mean loss of a batch to those of the parameters; the loss.
  using Backward = std::function<Tensor(const Tensor& batch)>;

  // `staged`: the optimizer has parameters of several stages, each on devices of its own.
  Step(Backward backward, Optimizer& optim, const Mesh& mesh, int64_t accumulate, bool staged)
      : backward_(std::move(backward)),
        optim_(optim),
        mesh_(mesh),
        accumulate_(accumulate),
        staged_(staged),
        sum_(optim.params()),
        total_(Tensor::zeros({}).shard(mesh).clone()) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // {loss, norm of the gradients}, which the devices may still be computing.
  Tensor operator()(const std::vector<Tensor>& batches) {
    if (accumulate_ == 1) return whole_(batches.at(0));
    for (const Tensor& batch : batches) part_(batch);
    return update_();
  }

  // Returns the parts of a step, in the order in which they run, captured by a step on this batch.
  std::vector<const CapturedStep*> parts(const Tensor& batch) {
    if (accumulate_ == 1) {
      whole_(batch);
      return {&whole_.captured_step()};
    }
    part_(batch);
    update_();
    return {&part_.captured_step(), &update_.captured_step()};
  }

  std::string explain(const Tensor& batch, bool items) {
    std::vector<const CapturedStep*> all = parts(batch);
    if (accumulate_ == 1) return all.at(0)->explanation(items);
    return fmt::format("each of {} parts of a step\n{}the update\n{}", accumulate_,
                       all.at(0)->explanation(items), all.at(1)->explanation(items));
  }

 private:
  // The norm of the gradients, those of several stages included, beside the loss.
  Tensor update_and_norm() {
    Tensor norm = optim_.step();
    return staged_ ? norm.shard(mesh_) : norm;
  }

  Tensor whole(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    Tensor loss = backward_(batch);
    return stack({loss, update_and_norm()});
  }
  void part(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    total_ += backward_(batch);
    sum_.add();
  }
  Tensor update() {
    TrainingMode on;
    sum_.take(1.0 / double(accumulate_));
    Tensor result = stack({total_ / double(accumulate_), update_and_norm()});
    total_.assign(0.0);
    return result;
  }

  Backward backward_;
  Optimizer& optim_;
  Mesh mesh_;
  int64_t accumulate_;
  bool staged_;
  nn::GradientSum sum_;
  Tensor total_;  // of the losses of the parts

  struct Whole {
    Step* self;
    Tensor operator()(const Tensor& batch) const { return self->whole(batch); }
  };
  struct Part {
    Step* self;
    void operator()(const Tensor& batch) const { self->part(batch); }
  };
  struct Update {
    Step* self;
    Tensor operator()() const { return self->update(); }
  };
  Jit<Whole> whole_{Whole{this}};
  Jit<Part> part_{Part{this}};
  Jit<Update> update_{Update{this}};
};

}  // namespace training
