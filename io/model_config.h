// config.json of a model folder as Hugging Face lays it out: the sizes that a transformer is built
// from, under one name each, whatever the family calls them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype/dtype.h"

namespace tinyshard::io {

// How rotary embeddings turn slower than rope_base says, for texts longer than those of the first
// training: rope_scaling, or rope_parameters of newer files.
struct RopeScaling {
  std::string kind;                       // rope_type: "linear", "llama3"
  double factor = 1;                      // of positions
  double slow_turns = 1, fast_turns = 4;  // low_freq_factor and high_freq_factor of llama3:
  int64_t context = 0;                    // turns in original_max_position_embeddings
  bool operator==(const RopeScaling&) const = default;
};

// The rotary embedding of one kind of layers.
struct LayerRope {
  double base = 10000;
  std::optional<RopeScaling> scaling;
  bool operator==(const LayerRope&) const = default;
};

// Fields that a file lacks are as its family has them: as many kv_heads as heads, for instance. The
// sizes of the text model of a file for texts and images are those of its text_config.
struct ModelConfig {
  std::string family;                       // model_type: "llama", "gpt2"
  std::vector<std::string> architectures;   // "LlamaForCausalLM"
  int64_t layers = 0;                       // num_hidden_layers, n_layer
  int64_t width = 0;                        // hidden_size, n_embd
  int64_t heads = 0, kv_heads = 0;          // num_attention_heads, n_head; num_key_value_heads
  int64_t head_width = 0;                   // head_dim; else width / heads
  int64_t hidden = 0;                       // intermediate_size, n_inner; else 4 * width
  int64_t vocabulary = 0;                   // vocab_size
  int64_t context = 0;                      // max_position_embeddings, n_positions, n_ctx
  double norm_epsilon = 1e-5;               // rms_norm_eps, layer_norm_epsilon, layer_norm_eps
  double rope_base = 10000;                 // rope_theta
  std::optional<RopeScaling> rope_scaling;  // none for a file's "default"
  // Sizes that differ by layer, under the names above ("heads", "kv_heads", "hidden"), which are 0 then.
  std::map<std::string, std::vector<int64_t>> by_layer;
  // Kinds of layers that turn differently: "full_attention", "sliding_attention" of rope_parameters.
  std::map<std::string, LayerRope> layer_ropes;
  std::string activation;              // hidden_act, activation_function: "silu"
  bool tied = true;                    // tie_word_embeddings
  std::optional<DType> dtype;          // torch_dtype, dtype; none for "auto"
  std::optional<int64_t> begin_token;  // bos_token_id
  std::vector<int64_t> end_tokens;     // eos_token_id, one or several
  // Fields without a member here, as JSON: "pretraining_tp". Python's Infinity and NaN are texts.
  std::map<std::string, std::string> other;
};

// FormatError names the file, the field and what it holds: a text for a number, a size below 1.
ModelConfig parse_model_config(std::string_view text, std::string_view label);
ModelConfig read_model_config(const std::filesystem::path& file_or_folder);

}  // namespace tinyshard::io
