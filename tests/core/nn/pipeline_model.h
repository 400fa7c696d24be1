// A Llama in stages, and its training on a mesh with an axis for them: what tests of pipelines share.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/nn/llama.h"

namespace tinyshard::test {

inline bool has_axis(const Mesh& mesh, const std::string& axis) {
  return std::ranges::any_of(mesh.axes(), [&](const MeshAxis& a) { return a.name == axis; });
}

// Embedding, blocks and head, in so many stages. A tied head reads the table of the embedding.
inline std::vector<nn::PipelineStage> stages_of(const Llama& model, int64_t stages,
                                                bool tied = false) {
  std::vector<nn::PipelineStage> parts;
  parts.emplace_back([model](const Tensor& ids) { return model.embed.embedding(ids); },
                     model.embed);
  for (const LlamaBlock& block : model.h) {
    if (model.config.checkpoint)
      parts.emplace_back([block](const Tensor& x) { return nn::checkpoint_activations(block, x); },
                         block);
    else
      parts.emplace_back(block);
  }
  const Tensor table = tied ? model.embed : model.head;
  parts.emplace_back([=](const Tensor& x) { return model.norm(x).matmul(table.T()); }, model.norm,
                     table);
  return nn::join_stages(std::move(parts), stages);
}

inline Tensor cross_entropy(const Tensor& logits, const Tensor& next) {
  return logits.sparse_categorical_crossentropy(next);
}

}  // namespace tinyshard::test
