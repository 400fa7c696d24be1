// An optimizer step of GPT-2, which examples/gpt2.cpp captures and runs, and bench/plan_dump
// plans without a device.
#pragma once
#include <cstdint>
#include <optional>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include "examples/gpt2_model.h"
#include "examples/parallel.h"
#include "examples/training_step.h"

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

// A Step trains on batches of [rows, context + 1] tokens.
class Step : public training::Step {
 public:
  Step(const Model& model, Optimizer& optim, const Mesh& mesh, int64_t accumulate,
       std::optional<nn::Pipeline> stages = {})
      : training::Step([this](const Tensor& batch) { return backward(batch); }, optim, mesh,
                       accumulate, stages.has_value()),
        model_(model),
        mesh_(mesh),
        stages_(std::move(stages)) {}

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

  const Model& model_;
  Mesh mesh_;
  std::optional<nn::Pipeline> stages_;
  nn::Pipeline::Loss loss_ = [this](const Tensor& scores, const Tensor& next) {
    return model_.loss_of(scores, next);
  };
};

}  // namespace gpt2
