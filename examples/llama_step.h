// An optimizer step of a Llama that is trained from scratch: its blocks in stages, the weights of a
// block divided by heads and hidden units, parameters and optimizer state in parts, in any
// combination. examples/llama_train.cpp captures and runs it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/llama_model.h"
#include "examples/parallel.h"

namespace llama {

// Axes of a mesh by training::mesh_of.
struct Division : training::MeshFlags {
  bool sequence = false;                // between layers, over the devices of --tp
  bool checkpoint_activations = false;  // of blocks
};

// Weights as Llamas begin: normal, those that add to the stream 2 * layers times scaled down. Without
// values until the model is placed.
inline void begin(const Model& model, const ModelConfig& c) {
  constexpr double kStd = 0.02;
  for (const auto& [name, t] : nn::state_dict(model)) {
    if (t.ndim() < 2) continue;
    const bool adds =
        name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
    const double std = adds ? kStd / std::sqrt(2.0 * double(c.layers)) : kStd;
    t.replace(Tensor::normal(t.shape(), 0, std).is_param_());
  }
}

class Training {
 public:
  // Divides a model that has no values yet: no device ever holds more than its part.
  Training(const Model& model, const ModelConfig& config, const Mesh& mesh,
           const Division& division)
      : model_(model), mesh_(mesh), division_(division) {
    if (division.tp > 1 && config.kv_heads % division.tp != 0)
      throw UserError(
          fmt::format("--kv-heads {} do not divide among --tp {}", config.kv_heads, division.tp));
    if (division.sequence && division.tp == 1)
      throw UserError("--sp divides sequences over the devices of --tp, which is 1");
    if (division.pp > 1)
      stages_ = stages();
    else if (division.fsdp == 1 && division.tp == 1)
      nn::data_parallel(model, mesh, "data");
    if (division.tp > 1) divide_layers(model, mesh, "model");
    if (division.fsdp > 1) nn::fully_shard(model, mesh, "fsdp", {.blocks = "model.layers.*"});
    for (int64_t s = 0; s < division.pp; ++s) {
      const Mesh& there = stages_ ? stages_->mesh(s) : mesh;
      turns_.push_back(turns(config, config.context, there));
    }
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // The mean over a batch of [rows, tokens + 1], on the mesh.
  Tensor loss(const Tensor& batch) const {
    const Tensor tokens = training::by_rows(batch, mesh_);
    if (stages_) return stages_->loss(without_last(tokens), without_first(tokens), loss_of);
    return loss_of(scores(without_last(tokens)), without_first(tokens));
  }
  // The same, with its gradients added to those of the parameters.
  Tensor backward(const Tensor& batch) const {
    const Tensor tokens = training::by_rows(batch, mesh_);
    if (stages_) return stages_->backward(without_last(tokens), without_first(tokens), loss_of);
    return loss_of(scores(without_last(tokens)), without_first(tokens)).backward();
  }
  bool staged() const { return stages_.has_value(); }

 private:
  static Tensor without_last(const Tensor& tokens) { return tokens[{kEllipsis, Slice({}, -1)}]; }
  static Tensor without_first(const Tensor& tokens) { return tokens[{kEllipsis, Slice(1, {})}]; }
  static Tensor loss_of(const Tensor& scores, const Tensor& next) {
    return scores.sparse_categorical_crossentropy(next);
  }

  Tensor embedded(const Tensor& tokens) const {
    const Tensor x = model_.embedded(tokens);
    return division_.sequence ? nn::sequence_parallel(x, mesh_, "model") : x;
  }
  Tensor through(const Block& block, const Tensor& x) const {
    auto f = [&](const Tensor& y) { return block.all(y, turns_[here_]); };
    return division_.checkpoint_activations ? nn::checkpoint_activations(f, x) : f(x);
  }
  Tensor scores(const Tensor& tokens) const {
    Tensor x = embedded(tokens);
    for (const Block& block : model_.model.layers) x = through(block, x);
    return model_.scores(x);
  }
  nn::Pipeline stages() const {
    const Body& body = model_.model;
    std::vector<nn::PipelineStage> parts;
    parts.emplace_back([this](const Tensor& tokens) { return embedded(tokens); },
                       body.embed_tokens);
    for (const Block& block : body.layers)
      parts.emplace_back([this, &block](const Tensor& x) { return through(block, x); }, block);
    auto end = [this](const Tensor& x) { return model_.scores(x); };
    if (model_.lm_head)
      parts.emplace_back(end, body.norm, *model_.lm_head);
    else
      parts.emplace_back(end, body.norm, body.embed_tokens);
    std::vector<nn::PipelineStage> joined = nn::join_stages(std::move(parts), division_.pp);
    for (size_t s = 0; s < joined.size(); ++s) {
      joined[s].forward = [this, s, whole = joined[s].forward](const Tensor& x) {
        here_ = s;
        return whole(x);
      };
    }
    return {mesh_, "pipe", std::move(joined), {.micro_batches = division_.micro()}};
  }

  const Model& model_;
  Mesh mesh_;
  Division division_;
  std::vector<Turns> turns_;  // of each stage
  mutable size_t here_ = 0;   // the stage whose pass is being written down
  std::optional<nn::Pipeline> stages_;
};

}  // namespace llama
