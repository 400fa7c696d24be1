// A Llama out of a GGUF file as llama.cpp writes it: sizes and tokenizer from its key/values, its
// tensors, of any type that gguf_load knows, under the names of Hugging Face's files. In such a file
// rows of queries and keys turn in pairs of neighbours; here they turn in pairs of halves.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace llama {

using namespace tinyshard;

// The key/values of a file. UserError names the file, the key and what was expected.
class GgufKeys {
 public:
  GgufKeys(const io::ValueMap& kv, std::string path) : kv_(kv), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(fmt::format("{}: {}", path_, what));
  }
  bool has(const std::string& key) const { return kv_.contains(key); }
  template <class T>
  const T& get(const std::string& key, std::string_view what) const {
    const auto found = kv_.find(key);
    if (found == kv_.end()) refuse(fmt::format("it has no {}", key));
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) refuse(fmt::format("{} is not {}", key, what));
    return *value;
  }
  const std::string& text(const std::string& key) const { return get<std::string>(key, "a text"); }
  const io::Values& list(const std::string& key) const { return get<io::Values>(key, "a list"); }
  double number(const std::string& key) const {
    const auto found = kv_.find(key);
    if (found == kv_.end()) refuse(fmt::format("it has no {}", key));
    if (const auto* x = std::get_if<double>(&found->second)) return *x;
    return double(whole(key));
  }
  int64_t whole(const std::string& key) const {
    const auto found = kv_.find(key);
    if (found == kv_.end()) refuse(fmt::format("it has no {}", key));
    return whole_of(found->second, key);
  }
  int64_t whole_of(const io::Value& value, const std::string& key) const {
    if (const auto* x = std::get_if<int64_t>(&value)) return *x;
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    const auto* x = std::get_if<uint64_t>(&value);
    if (x == nullptr || *x > kMost) refuse(fmt::format("{} is not a whole number", key));
    return int64_t(*x);
  }
  int64_t size(const std::string& key) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    const int64_t n = whole(key);
    if (n < 1 || n > kMost) refuse(fmt::format("{} is {}, not a size", key, n));
    return n;
  }

 private:
  const io::ValueMap& kv_;
  std::string path_;
};

inline ModelConfig gguf_config(const GgufKeys& keys, const nn::StateDict& tensors) {
  if (keys.text("general.architecture") != "llama")
    keys.refuse(fmt::format("general.architecture is \"{}\", not \"llama\"",
                            keys.text("general.architecture")));
  const auto words = tensors.find("token_embd.weight");
  if (words == tensors.end() || words->second.ndim() != 2)
    keys.refuse("it has no matrix token_embd.weight");
  ModelConfig c;
  c.family = "llama";
  c.activation = "silu";
  c.layers = keys.size("llama.block_count");
  c.width = keys.size("llama.embedding_length");
  c.heads = c.kv_heads = keys.size("llama.attention.head_count");
  if (keys.has("llama.attention.head_count_kv"))
    c.kv_heads = keys.size("llama.attention.head_count_kv");
  c.head_width = keys.has("llama.attention.key_length") ? keys.size("llama.attention.key_length")
                                                        : c.width / c.heads;
  if (keys.has("llama.rope.dimension_count") &&
      keys.size("llama.rope.dimension_count") != c.head_width)
    keys.refuse(fmt::format("{} of the {} numbers of a head turn; here all do",
                            keys.size("llama.rope.dimension_count"), c.head_width));
  c.hidden = keys.size("llama.feed_forward_length");
  c.context = keys.size("llama.context_length");
  c.norm_epsilon = keys.number("llama.attention.layer_norm_rms_epsilon");
  if (keys.has("llama.rope.freq_base")) c.rope_base = keys.number("llama.rope.freq_base");
  if (keys.has("llama.rope.scaling.type") && keys.text("llama.rope.scaling.type") != "none") {
    RopeScaling scaling;
    scaling.kind = keys.text("llama.rope.scaling.type");  // check_config knows which there are
    scaling.factor = keys.number("llama.rope.scaling.factor");
    if (!(scaling.factor > 0))
      keys.refuse(fmt::format("llama.rope.scaling.factor is {}", scaling.factor));
    c.rope_scaling = scaling;
  }
  c.vocabulary = words->second.shape(0);
  c.tied = !tensors.contains("output.weight");
  if (const DType type = words->second.dtype(); type == DType::F16 || type == DType::BF16)
    c.dtype = type;  // quantised ones are f32 once they are computed
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (keys.has(key)) c.end_tokens.push_back(keys.whole(key));
  }
  return c;
}

// Rows of heads from pairs of neighbours, (0, 1) (2, 3), to pairs of halves, (0, 2) (1, 3).
inline Tensor in_halves(const Tensor& weight, int64_t head) {
  return weight.unflatten(0, {-1, head / 2, 2}).transpose(1, 2).flatten(0, 2);
}

inline nn::StateDict gguf_tensors(const ModelConfig& c, const nn::StateDict& stored,
                                  const GgufKeys& keys) {
  const std::map<std::string, std::string, std::less<>> parts = {
      {"attn_q", "self_attn.q_proj"},          {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},          {"attn_output", "self_attn.o_proj"},
      {"ffn_gate", "mlp.gate_proj"},           {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},           {"attn_norm", "input_layernorm"},
      {"ffn_norm", "post_attention_layernorm"}};
  nn::StateDict named;
  for (const auto& [name, value] : stored) {
    if (name == "rope_freqs.weight") continue;  // of turns
    std::string here = name;                    // load_state_dict names what it does not know
    if (name == "token_embd.weight") here = "model.embed_tokens.weight";
    if (name == "output_norm.weight") here = "model.norm.weight";
    if (name == "output.weight") here = "lm_head.weight";
    const size_t layer = name.find('.') + 1, part = name.find('.', layer) + 1,
                 end = name.rfind('.');
    Tensor held = value;
    if (name.starts_with("blk.") && part != 0 && part <= end) {
      const auto known = parts.find(std::string_view(name).substr(part, end - part));
      if (known != parts.end())
        here = fmt::format("model.layers.{}.{}{}", name.substr(layer, part - layer - 1),
                           known->second, name.substr(end));
      if (known != parts.end() && (known->first == "attn_q" || known->first == "attn_k")) {
        if (value.ndim() != 2 || value.shape(0) % c.head_width != 0)
          keys.refuse(fmt::format("{} is {}, no rows of heads of {}", name, value.describe(),
                                  c.head_width));
        held = in_halves(value, c.head_width);
      }
    }
    named.emplace(here, held);
  }
  return named;
}

// How words are cut, by the name that a file gives it: by each pattern what the one before left.
struct Words {
  std::vector<std::string> patterns;
  bool ignore_merges;  // a word that is a token is taken as it is
};
inline Words words_of(const GgufKeys& keys) {
  const std::string kind =
      keys.has("tokenizer.ggml.pre") ? keys.text("tokenizer.ggml.pre") : "default";
  if (kind == "llama-bpe" || kind == "llama3" || kind == "llama-v3")
    return {
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
        true};
  const std::string gpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  if (kind == "gpt-2") return {{gpt2}, false};
  if (kind == "smollm") return {{R"(\p{N})", gpt2}, false};
  keys.refuse(
      fmt::format("tokenizer.ggml.pre is \"{}\", which is not known here: give the "
                  "folder of a tokenizer.json with --tokenizer",
                  kind));
}

// The tokenizer of the file as a tokenizer.json would describe it.
inline Tokenizer gguf_tokenizer(const GgufKeys& keys, const std::string& path) {
  using nlohmann::json;
  if (keys.text("tokenizer.ggml.model") != "gpt2")
    keys.refuse(fmt::format(
        "its tokenizer is \"{}\", only byte-level BPE (\"gpt2\") is read: give the folder of a "
        "tokenizer.json with --tokenizer",
        keys.text("tokenizer.ggml.model")));
  constexpr int64_t kControl = 3, kUserDefined = 4;  // types of tokens
  const io::Values& tokens = keys.list("tokenizer.ggml.tokens");
  const io::Values types =
      keys.has("tokenizer.ggml.token_type") ? keys.list("tokenizer.ggml.token_type") : io::Values();
  json vocabulary = json::object(), merges = json::array(), added = json::array();
  std::vector<std::string> spelled;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto* token = std::get_if<std::string>(&tokens[i]);
    if (token == nullptr) keys.refuse(fmt::format("tokenizer.ggml.tokens[{}] is not a text", i));
    spelled.push_back(*token);
    const int64_t type =
        i < types.size() ? keys.whole_of(types[i], "tokenizer.ggml.token_type") : 1;
    if (type == kControl || type == kUserDefined) {
      added.push_back({{"id", i}, {"content", *token}, {"special", type == kControl}});
    } else {
      vocabulary[*token] = i;
    }
  }
  for (const io::Value& merge : keys.list("tokenizer.ggml.merges")) {
    const auto* both = std::get_if<std::string>(&merge);
    if (both == nullptr) keys.refuse("tokenizer.ggml.merges holds more than texts");
    merges.push_back(*both);
  }
  const Words words = words_of(keys);
  json cuts = json::array();
  for (const std::string& pattern : words.patterns)
    cuts.push_back({{"type", "Split"},
                    {"pattern", {{"Regex", pattern}}},
                    {"behavior", "Isolated"},
                    {"invert", false}});
  cuts.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  json all = {{"model",
               {{"type", "BPE"},
                {"vocab", vocabulary},
                {"merges", merges},
                {"ignore_merges", words.ignore_merges}}},
              {"added_tokens", added},
              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", cuts}}},
              {"decoder", {{"type", "ByteLevel"}}}};
  // Files of Llama 3 do not say whether a text begins with the token for it; it does.
  const bool begins = !keys.has("tokenizer.ggml.add_bos_token") ||
                      keys.get<bool>("tokenizer.ggml.add_bos_token", "true or false");
  if (begins && keys.has("tokenizer.ggml.bos_token_id")) {
    const int64_t token = keys.whole("tokenizer.ggml.bos_token_id");
    if (token < 0 || token >= int64_t(spelled.size()))
      keys.refuse(
          fmt::format("tokenizer.ggml.bos_token_id is {}, of {} tokens", token, spelled.size()));
    all["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", spelled[size_t(token)]}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  }
  return Tokenizer::parse(all.dump(-1, ' ', false, json::error_handler_t::replace), path);
}

}  // namespace llama
