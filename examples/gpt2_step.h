// One optimizer step of GPT-2: what examples/gpt2.cpp captures and runs, and what bench/plan_dump
// plans without a device.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/gpt2_model.h"
#include "examples/parallel.h"

namespace gpt2 {

using namespace tinyshard;

using training::mesh_of;
using training::MeshFlags;
using training::Optimizer;
using training::OptimizerFlags;

// The model's parts in stages; it has to live as long.
inline nn::Pipeline pipeline(const Model& model, const Mesh& mesh, const MeshFlags& f) {
  std::vector<nn::PipelineStage> parts;
  parts.emplace_back([&model](const Tensor& tokens) { return model.embedded(tokens); }, model.wte,
                     model.wpe);
  for (const Block& block : model.h)
    parts.emplace_back([&](const Tensor& x) { return model.through(block, x); }, block);
  parts.emplace_back([&model](const Tensor& x) { return model.scores(x); }, model.ln_f, model.wte);
  return {mesh, "pipe", nn::join_stages(std::move(parts), f.pp), {.micro_batches = f.micro()}};
}

// Places a model that has no values yet: no device ever holds more than its part. The stages, where
// there are some.
inline std::optional<nn::Pipeline> divide(const Model& model, const Mesh& mesh,
                                          const MeshFlags& f) {
  std::optional<nn::Pipeline> stages;
  if (f.pp > 1)
    stages = pipeline(model, mesh, f);
  else if (f.fsdp == 1 && f.tp == 1)
    nn::data_parallel(model, mesh, "data");
  if (f.tp > 1) {
    // Each of them by itself, where it divides.
    const std::vector<int64_t> q_k_v(model.config.width % f.tp == 0 ? 3 : 0, 1);
    nn::tensor_parallel(
        model, mesh, "model",
        {{.names = "h.*.attn.c_attn", .split = Column, .inputs_first = true, .parts = q_k_v},
         {.names = "h.*.attn.c_proj", .split = Row, .inputs_first = true},
         {.names = "h.*.mlp.c_fc", .split = Column, .inputs_first = true},
         {.names = "h.*.mlp.c_proj", .split = Row, .inputs_first = true},
         {.names = "wte", .split = Vocabulary}});
  }
  if (f.fsdp > 1) nn::fully_shard(model, mesh, "fsdp", {.blocks = "h.*"});
  return stages;
}

// One optimizer step: in one piece, or, with --accumulate, a captured part that is called for each
// micro-batch and a captured update.
class Step {
 public:
  Step(const Model& model, Optimizer& optim, const Mesh& mesh, int64_t accumulate,
       std::optional<nn::Pipeline> stages = {})
      : model_(model),
        optim_(optim),
        mesh_(mesh),
        accumulate_(accumulate),
        stages_(std::move(stages)),
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
    const Tensor tokens = placed(batch);
    if (!stages_) return model_.loss(tokens);
    return stages_->loss(Model::without_last(tokens), Model::without_first(tokens), loss_);
  }

 private:
  Tensor placed(const Tensor& batch) const { return training::by_rows(batch, mesh_); }
  Tensor backward(const Tensor& batch) const {
    if (!stages_) return loss_of(batch).backward();
    const Tensor tokens = placed(batch);
    return stages_->backward(Model::without_last(tokens), Model::without_first(tokens), loss_);
  }
  // The norm of the gradients of all stages, beside the loss.
  Tensor update_and_norm() {
    Tensor norm = optim_.step();
    return stages_ ? norm.shard(mesh_) : norm;
  }

  Tensor whole(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    Tensor loss = backward(batch);
    return stack({loss, update_and_norm()});
  }
  void part(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    total_ += backward(batch);
    sum_.add();
  }
  Tensor update() {
    TrainingMode on;
    sum_.take(1.0 / double(accumulate_));
    Tensor result = stack({total_ / double(accumulate_), update_and_norm()});
    total_.assign(0.0);
    return result;
  }

  const Model& model_;
  Optimizer& optim_;
  Mesh mesh_;
  int64_t accumulate_;
  std::optional<nn::Pipeline> stages_;
  nn::Pipeline::Loss loss_ = [this](const Tensor& scores, const Tensor& next) {
    return model_.loss_of(scores, next);
  };
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
