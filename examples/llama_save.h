// Writes a trained Llama as a folder that examples/llama, and other tools that read Hugging Face's,
// go on with: config.json, model.safetensors and, of a model of bytes, tokenizer.json.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "examples/llama_model.h"

namespace llama {

// The 256 bytes as byte-level tokenizers spell them: those that print as themselves, the others as
// the characters behind Latin-1, in order. In UTF-8.
inline std::array<std::string, 256> spelled_bytes() {
  std::array<std::string, 256> all;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
    const int point = prints ? b : next++;
    std::string& s = all[size_t(b)];
    if (point < 0x80) {
      s = char(point);
    } else {
      s = {char(0xc0 | (point >> 6)), char(0x80 | (point & 0x3f))};
    }
  }
  return all;
}

// Each byte is the token of its number; nothing is joined.
inline nlohmann::json byte_tokenizer() {
  nlohmann::json vocabulary;
  const std::array<std::string, 256> bytes = spelled_bytes();
  for (int b = 0; b < 256; ++b) vocabulary[bytes[size_t(b)]] = b;
  const nlohmann::json level = {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", level},
          {"post_processor", nullptr},
          {"decoder", level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"vocab", vocabulary},
            {"merges", nlohmann::json::array()}}}};
}

// All ranks call this; each writes its part of the tensors, the first one the rest.
inline void save(const Model& model, const ModelConfig& c, bool bytes,
                 const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  if (world().rank == 0) {
    auto write = [&](const char* name, const nlohmann::json& json) {
      std::ofstream file(folder / name);
      file << json.dump(2) << '\n';
      if (!file.flush()) throw UserError(fmt::format("cannot write {}", (folder / name).string()));
    };
    const char* type = default_float() == DType::F64 ? "float64" : "float32";
    write("config.json", {{"architectures", {"LlamaForCausalLM"}},
                          {"model_type", "llama"},
                          {"hidden_size", c.width},
                          {"intermediate_size", c.hidden},
                          {"num_hidden_layers", c.layers},
                          {"num_attention_heads", c.heads},
                          {"num_key_value_heads", c.kv_heads},
                          {"head_dim", c.head_width},
                          {"hidden_act", "silu"},
                          {"max_position_embeddings", c.context},
                          {"rms_norm_eps", c.norm_epsilon},
                          {"rope_theta", c.rope_base},
                          {"tie_word_embeddings", c.tied},
                          {"torch_dtype", type},
                          {"vocab_size", c.vocabulary}});
    if (bytes) write("tokenizer.json", byte_tokenizer());
  }
  safe_save(nn::state_dict(model), folder / "model.safetensors");
}

}  // namespace llama
