// A model's folder as Hugging Face lays it out: config.json and its tensors, on a mesh.
//
//   auto [config, tensors] = load_hf("llama", mesh, {
//       {"model.layers.*.o_proj|down_proj", {{"model", Shard(1)}}},
//       {"model.layers.*", {{"model", Shard(0)}}}});
//
// The tokenizer beside them is Tokenizer("llama").
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/nn/state_dict.h"
#include "io/model_config.h"

namespace tinyshard::nn {

struct PlacementRule {
  std::string names;  // what begins so (core/nn/name_pattern.h)
  std::vector<AxisPlacement> placements;
};

struct HfModel {
  io::ModelConfig config;
  StateDict tensors;  // under the names of the files
};

// Tensors lie as the first rule that matches their name says, on the whole mesh where none does; a
// placement along a dim that a tensor does not have is left out, so that a rule for weights holds
// for their biases. Each process reads the parts of its own devices. Of `options`, strict does not
// apply. UserError for a rule that matches no name, and for an axis that the mesh does not have.
HfModel load_hf(const std::filesystem::path& folder, const Mesh& mesh,
                const std::vector<PlacementRule>& rules = {}, const LoadOptions& options = {},
                Caller caller = Caller::current());

}  // namespace tinyshard::nn

namespace tinyshard {
using io::ModelConfig;
using io::RopeScaling;
using nn::load_hf;
}  // namespace tinyshard
