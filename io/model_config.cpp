#include "io/model_config.h"

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
    const auto value = take(names);
    if (!value) return;
    if (!value->is_number_integer() || value->get<int64_t>() < 1 ||
        value->get<int64_t>() > kMaxSize)
      throw fail(*value, "a size");
    into = value->get<int64_t>();
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
  // rope_scaling, an object, may be within rope_parameters with the base.
  void rope(ModelConfig& c) {
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      const auto value = take({name});
      if (!value) continue;
      if (!value->is_object()) throw fail(*value, "an object");
      Fields inner(*value, label_);
      inner.number({"rope_theta"}, c.rope_base);
      RopeScaling scaling;
      inner.text({"rope_type", "type"}, scaling.kind);
      inner.number({"factor"}, scaling.factor);
      inner.number({"low_freq_factor"}, scaling.slow_turns);
      inner.number({"high_freq_factor"}, scaling.fast_turns);
      inner.size({"original_max_position_embeddings"}, scaling.context);
      if (scaling.kind == "default") continue;
      if (scaling.kind.empty()) throw fail(*value, "a scaling with a rope_type");
      if (!(scaling.factor > 0)) throw fail(*value, "a scaling with a factor above 0");
      const bool turns = scaling.slow_turns > 0 && scaling.slow_turns < scaling.fast_turns;
      if (scaling.kind == "llama3" && (!turns || scaling.context == 0))
        throw fail(*value,
                   "a llama3 scaling: 0 < low_freq_factor < high_freq_factor and "
                   "original_max_position_embeddings");
      c.rope_scaling = scaling;
    }
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
  json object_;
  std::string_view label_;
  std::string name_;  // of what was taken last
};

}  // namespace

ModelConfig parse_model_config(std::string_view text, std::string_view label) {
  std::string why;
  json root = parse_json(text, why);
  if (root.is_discarded()) throw FormatError(label, why);
  if (!root.is_object()) throw FormatError(label, "it holds no JSON object");
  Fields fields(std::move(root), label);
  ModelConfig c;
  fields.text({"model_type"}, c.family);
  if (const auto list = fields.take({"architectures"})) {
    for (const json& entry : *list) {
      if (!list->is_array() || !entry.is_string()) throw fields.fail(*list, "a list of texts");
      c.architectures.push_back(entry.get<std::string>());
    }
  }
  fields.size({"num_hidden_layers", "n_layer"}, c.layers);
  fields.size({"hidden_size", "n_embd"}, c.width);
  fields.size({"num_attention_heads", "n_head"}, c.heads);
  c.kv_heads = c.heads;
  fields.size({"num_key_value_heads"}, c.kv_heads);
  c.head_width = c.heads > 0 ? c.width / c.heads : 0;
  fields.size({"head_dim"}, c.head_width);
  c.hidden = 4 * c.width;
  fields.size({"intermediate_size", "n_inner"}, c.hidden);
  fields.size({"vocab_size"}, c.vocabulary);
  fields.size({"max_position_embeddings", "n_positions", "n_ctx"}, c.context);
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
  if (!dtype.empty() && !c.dtype) throw fields.fail(dtype, "a type of floats");
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
