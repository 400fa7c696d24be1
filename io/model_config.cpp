// Each size has the names that families use for it, and is taken from the
// first that is there; all of these names are removed, so that what remains is
// what we do not know. Defaults follow from what was read: as many heads for
// keys as for queries, heads of width / heads, four times the width inside.
#include "io/model_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/file.h"
#include "io/errors.h"
#include "io/json.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfig = 1 << 20;
constexpr int64_t kMaxSize = int64_t{1} << 40;

struct ConfigType {
  std::string_view name;
  DType dtype;
};
constexpr ConfigType kConfigTypes[] = {{"float32", DType::F32},   {"float", DType::F32},
                                       {"float16", DType::F16},   {"half", DType::F16},
                                       {"bfloat16", DType::BF16}, {"float64", DType::F64}};

// Takes fields out of the object; what is left has no field of ours.
class Fields {
 public:
  Fields(json object, std::string_view label) : object_(std::move(object)), label_(label) {}

  // The value under the first of these names that is there and not null.
  std::optional<json> take(std::initializer_list<const char*> names) {
    std::optional<json> found;
    for (const char* name : names) {
      const auto it = object_.find(name);
      if (it == object_.end()) continue;
      if (!found && !it->is_null()) {
        found = *it;
        name_ = name;
      }
      object_.erase(it);
    }
    return found;
  }
  FormatError fail(const json& value, std::string_view wanted) const {
    return FormatError(label_,
                       fmt::format("{} is {}, not {}", name_, in_quotes(value.dump()), wanted));
  }

  void size(std::initializer_list<const char*> names, int64_t& into) {
    if (const auto value = take(names)) into = size_of(*value);
  }
  // A size that may be a list, one for each layer. What is the same for all of them is one size.
  void size(std::initializer_list<const char*> names, int64_t& into, const char* ours,
            ModelConfig& c) {
    const auto value = take(names);
    if (!value) return;
    if (!value->is_array() || value->empty()) return void(into = size_of(*value));
    std::vector<int64_t> sizes;
    for (const json& one : *value) sizes.push_back(size_of(one));
    const bool equal = std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; });
    into = equal ? sizes[0] : 0;
    if (!equal) c.by_layer[ours] = std::move(sizes);
  }
  void number(std::initializer_list<const char*> names, double& into) {
    const auto value = take(names);
    if (!value) return;
    if (!value->is_number()) throw fail(*value, "a number");
    into = value->get<double>();
  }
  void text(std::initializer_list<const char*> names, std::string& into) {
    const auto value = take(names);
    if (!value) return;
    if (!value->is_string()) throw fail(*value, "a text");
    into = value->get<std::string>();
  }
  // rope_scaling, an object, may be within rope_parameters with the base; those may be by kind of
  // layers.
  void rope(ModelConfig& c) {
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      const auto value = take({name});
      if (!value) continue;
      if (!value->is_object()) throw fail(*value, "an object");
      const auto is_object = [](const json& entry) { return entry.is_object(); };
      if (!value->empty() && std::ranges::all_of(*value, is_object)) {
        for (const auto& [kind, entry] : value->items())
          c.layer_ropes[kind] = layer_rope(entry, c.rope_base);
        continue;
      }
      const LayerRope rope = layer_rope(*value, c.rope_base);
      c.rope_base = rope.base;
      if (rope.scaling) c.rope_scaling = rope.scaling;
    }
  }
  LayerRope layer_rope(const json& value, double base) const {
    Fields inner(value, label_);
    LayerRope out{base, std::nullopt};
    inner.number({"rope_theta"}, out.base);
    RopeScaling scaling;
    inner.text({"rope_type", "type"}, scaling.kind);
    inner.number({"factor"}, scaling.factor);
    inner.number({"low_freq_factor"}, scaling.slow_turns);
    inner.number({"high_freq_factor"}, scaling.fast_turns);
    inner.size({"original_max_position_embeddings"}, scaling.context);
    if (scaling.kind == "default") return out;
    if (scaling.kind.empty()) throw fail(value, "a scaling with a rope_type");
    if (!(scaling.factor > 0)) throw fail(value, "a scaling with a factor above 0");
    const bool turns = scaling.slow_turns > 0 && scaling.slow_turns < scaling.fast_turns;
    if (scaling.kind == "llama3" && (!turns || scaling.context == 0))
      throw fail(value,
                 "a llama3 scaling: 0 < low_freq_factor < high_freq_factor and "
                 "original_max_position_embeddings");
    out.scaling = scaling;
    return out;
  }
  int64_t token(const json& value) const {
    if (!value.is_number_integer()) throw fail(value, "the number of a token");
    return value.get<int64_t>();
  }
  std::map<std::string, std::string> rest() const {
    std::map<std::string, std::string> out;
    for (const auto& [name, value] : object_.items()) out.emplace(name, value.dump());
    return out;
  }

 private:
  int64_t size_of(const json& value) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMaxSize)
      throw fail(value, "a size");
    return value.get<int64_t>();
  }

  json object_;
  std::string_view label_;
  std::string name_;  // of what was taken last
};

// Python writes numbers that JSON does not have. They become texts: [0, Infinity] is [0, "Infinity"].
std::string with_quoted_numbers(std::string_view text) {
  constexpr std::string_view kNames[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool in_text = false;
  for (size_t at = 0; at < text.size();) {
    const auto name = std::ranges::find_if(
        kNames, [&](std::string_view n) { return !in_text && text.substr(at).starts_with(n); });
    if (name != std::end(kNames)) {
      out.append("\"").append(*name).append("\"");
      at += name->size();
      continue;
    }
    if (text[at] == '"') in_text = !in_text;
    const size_t size = in_text && text[at] == '\\' && at + 1 < text.size() ? 2 : 1;
    out += text.substr(at, size);
    at += size;
  }
  return out;
}

// Puts the fields of text_config beside those of the file, which count where both have one.
json with_text_model(json root) {
  if (!root.contains("text_config") || !root.at("text_config").is_object()) return root;
  const json text = root.at("text_config");
  root.erase("text_config");
  for (const auto& [name, value] : text.items()) {
    if (!root.contains(name) || root.at(name).is_null()) root[name] = value;
  }
  return root;
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, std::string_view label) {
  std::string why;
  json root = parse_json(with_quoted_numbers(text), why);
  if (root.is_discarded()) throw FormatError(label, why);
  if (!root.is_object()) throw FormatError(label, "it holds no JSON object");
  Fields fields(with_text_model(std::move(root)), label);
  ModelConfig c;
  fields.text({"model_type"}, c.family);
  if (const auto list = fields.take({"architectures"})) {
    for (const json& entry : *list) {
      if (!list->is_array() || !entry.is_string()) throw fields.fail(*list, "a list of texts");
      c.architectures.push_back(entry.get<std::string>());
    }
  }
  fields.size({"num_hidden_layers", "n_layer", "num_transformer_layers"}, c.layers);
  fields.size({"hidden_size", "n_embd", "model_dim"}, c.width);
  fields.size({"num_attention_heads", "n_head", "num_query_heads"}, c.heads, "heads", c);
  c.kv_heads = c.heads;
  fields.size({"num_key_value_heads", "num_kv_heads"}, c.kv_heads, "kv_heads", c);
  c.head_width = c.heads > 0 ? c.width / c.heads : 0;
  fields.size({"head_dim"}, c.head_width);
  c.hidden = 4 * c.width;
  fields.size({"intermediate_size", "n_inner"}, c.hidden, "hidden", c);
  fields.size({"vocab_size"}, c.vocabulary);
  fields.size({"max_position_embeddings", "n_positions", "n_ctx", "max_context_length"}, c.context);
  fields.number({"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"}, c.norm_epsilon);
  fields.number({"rope_theta"}, c.rope_base);
  fields.rope(c);
  fields.text({"hidden_act", "activation_function"}, c.activation);
  c.tied = c.family != "llama";  // whose default it is
  if (const auto tied = fields.take({"tie_word_embeddings"})) {
    if (!tied->is_boolean()) throw fields.fail(*tied, "true or false");
    c.tied = tied->get<bool>();
  }
  std::string dtype;
  fields.text({"torch_dtype", "dtype"}, dtype);
  for (const ConfigType& type : kConfigTypes) {
    if (type.name == dtype) c.dtype = type.dtype;
  }
  if (!dtype.empty() && dtype != "auto" && !c.dtype) throw fields.fail(dtype, "a type of floats");
  if (const auto token = fields.take({"bos_token_id"})) c.begin_token = fields.token(*token);
  if (const auto token = fields.take({"eos_token_id"})) {
    if (token->is_array()) {
      for (const json& one : *token) c.end_tokens.push_back(fields.token(one));
    } else {
      c.end_tokens.push_back(fields.token(*token));
    }
  }
  c.other = fields.rest();
  return c;
}

ModelConfig read_model_config(const std::filesystem::path& file_or_folder) {
  std::error_code ignored;
  const auto path = std::filesystem::is_directory(file_or_folder, ignored)
                        ? file_or_folder / "config.json"
                        : file_or_folder;
  return parse_model_config(read_file(path, kMaxConfig), path.native());
}

}  // namespace tinyshard::io
