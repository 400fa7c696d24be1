// One optimizer step of GPT-2: what examples/gpt2.cpp captures and runs, and what bench/plan_dump
// plans without a device.
#pragma once
#include <cstdint>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/gpt2_model.h"

namespace gpt2 {

using namespace tinyshard;

struct OptimizerFlags {
  double lr = 6e-4, weight_decay = 0.1, clip = 1;
  std::string reduce_dtype = "f32";  // in which gradients travel between devices
  bool shard_optimizer = false, fsdp = false;
};

// AdamW that decays matrices only, after clipping.
class Optimizer {
 public:
  Optimizer(const Model& model, const OptimizerFlags& f)
      : clip_(f.clip),
        reduce_type_(dtype_from_name(f.reduce_dtype)),
        decayed_(of_rank(model, true), options(f, f.weight_decay)),
        others_(of_rank(model, false), options(f, 0)),
        all_(decayed_, others_) {}

  std::vector<Tensor> params() const { return all_.params(); }
  nn::StateDict state() const {
    nn::StateDict state = nn::state_dict(decayed_, "optimizer.decayed");
    state.merge(nn::state_dict(others_, "optimizer.others"));
    return state;
  }
  void set_lr(double lr) const {
    decayed_.set_lr(lr);
    others_.set_lr(lr);
  }
  void zero_grad() const { all_.zero_grad(); }
  // Returns the norm of all gradients before clipping.
  Tensor step() {
    all_.place_grad(reduce_type_);
    Tensor norm = nn::clip_grad_norm(params(), clip_);
    all_.step();
    return norm;
  }

 private:
  static std::vector<Tensor> of_rank(const Model& model, bool matrices) {
    std::vector<Tensor> list = nn::parameters(model);
    std::erase_if(list, [&](const Tensor& p) { return (p.ndim() >= 2) != matrices; });
    return list;
  }
  static nn::optim::AdamWOptions options(const OptimizerFlags& f, double decay) {
    return {.lr = f.lr,
            .b1 = 0.9,
            .b2 = 0.95,
            .weight_decay = decay,
            .shard_axis = f.shard_optimizer ? "data" : ""};
  }

  double clip_;
  DType reduce_type_;
  nn::optim::AdamW decayed_, others_;
  nn::optim::OptimizerGroup all_;
};

// One optimizer step: in one piece, or, with --accumulate, a captured part that is called for each
// micro-batch and a captured update.
class Step {
 public:
  Step(const Model& model, Optimizer& optim, const Mesh& mesh, int64_t accumulate)
      : model_(model),
        optim_(optim),
        mesh_(mesh),
        accumulate_(accumulate),
        sum_(optim.params()),
        total_(Tensor::zeros({}).shard(mesh).clone()) {}

  // {loss, norm}, which the devices may still be computing.
  Tensor operator()(const std::vector<Tensor>& batches) {
    if (accumulate_ == 1) return whole_(batches.at(0));
    for (const Tensor& batch : batches) part_(batch);
    return update_();
  }

  // What a step consists of, in the order in which it runs, captured by a step on this batch.
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

  Tensor loss_of(const Tensor& batch) const {
    return model_.loss(batch.shard(mesh_, {{"data", Shard(0)}}));
  }

 private:
  Tensor whole(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    Tensor loss = loss_of(batch).backward();
    return stack({loss, optim_.step()});
  }
  void part(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    total_ += loss_of(batch).backward();
    sum_.add();
  }
  Tensor update() {
    TrainingMode on;
    sum_.take(1.0 / double(accumulate_));
    Tensor result = stack({total_ / double(accumulate_), optim_.step()});
    total_.assign(0.0);
    return result;
  }

  const Model& model_;
  Optimizer& optim_;
  Mesh mesh_;
  int64_t accumulate_;
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

}  // namespace gpt2
