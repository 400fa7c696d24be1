// A file chat_template.jinja comes before the template in
// tokenizer_config.json, whose special tokens are variables in either case
// (bos_token). Objects keep the order of their names, as templates print them.
#include "io/chat_template.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "io/errors.h"
#include "io/jinja/interpreter.h"
#include "io/json.h"

namespace tinyshard {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxFile = 16 << 20;

std::string read_text(const std::filesystem::path& path) {
  return std::string(read_file(path, kMaxFile));
}

// The names of special tokens that templates know: bos_token, eos_token, pad_token...
jinja::Dict special_tokens(const ordered_json& config) {
  jinja::Dict out;
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with("_token")) continue;
    if (value.is_string()) out.emplace_back(name, value.get<std::string>());
    if (value.is_object() && value.contains("content") && value.at("content").is_string())
      out.emplace_back(name, value.at("content").get<std::string>());
  }
  return out;
}

ordered_json json_of(std::string_view text, std::string_view label) {
  std::string why;
  // Read once with the limits of all files, then in the order of its names.
  if (io::parse_json(text, why).is_discarded()) throw io::FormatError(label, why);
  return ordered_json::parse(text);
}

// Returns the template of a tokenizer_config.json: a text, or a list of named ones.
std::string template_in(const ordered_json& config, const std::string& name,
                        std::string_view label) {
  if (!config.is_object() || !config.contains("chat_template"))
    throw io::FormatError(label, "it holds no chat_template");
  const ordered_json& found = config.at("chat_template");
  if (found.is_string()) return found.get<std::string>();
  std::string names;
  for (const ordered_json& one : found.is_array() ? found : ordered_json::array()) {
    if (!one.is_object() || !one.value("name", ordered_json()).is_string()) continue;
    if (one.at("name") == name && one.value("template", ordered_json()).is_string())
      return one.at("template").get<std::string>();
    names += " " + io::in_quotes(one.at("name").get<std::string>());
  }
  throw io::FormatError(label, fmt::format("it holds no chat_template named {}; it has{}",
                                           io::in_quotes(name), names.empty() ? " none" : names));
}

}  // namespace

struct ChatTemplate::Data {
  std::string label;
  jinja::Body body;
  jinja::Dict tokens;

  Data(std::string_view source, std::string_view name, jinja::Dict special)
      : label(name), tokens(std::move(special)) {
    try {
      body = jinja::parse_template(source);
    } catch (const UserError& error) {
      throw io::FormatError(label, fmt::format("its chat template, {}", error.what()));
    }
  }

  std::string run(const ordered_json& messages, const ChatOptions& options) const {
    jinja::Dict values = tokens;
    values.emplace_back("messages", jinja::Value::from_json(messages));
    values.emplace_back("add_generation_prompt", options.add_generation_prompt);
    const ordered_json more = json_of(options.variables, "variables of a chat template");
    if (!more.is_object()) throw UserError("variables of a chat template are no JSON object");
    for (const auto& [name, value] : more.items())
      values.emplace_back(name, jinja::Value::from_json(value));
    if (!more.contains("tools")) values.emplace_back("tools", jinja::None());
    if (!more.contains("documents")) values.emplace_back("documents", jinja::None());
    try {
      return jinja::run_template(body, values);
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: its chat template, {}", label, error.what()));
    }
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Data> data) : data_(std::move(data)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view label) {
  return ChatTemplate(std::make_unique<Data>(source, label, jinja::Dict()));
}

ChatTemplate::ChatTemplate(const std::filesystem::path& path, const std::string& name) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const auto config_path = is_folder ? path / "tokenizer_config.json" : path;
  const auto own_path = path / "chat_template.jinja";
  const bool has_own = is_folder && name == "default" && std::filesystem::exists(own_path, ignored);
  const bool is_config = config_path.extension() == ".json";
  if (has_own && !std::filesystem::exists(config_path, ignored)) {
    data_ = std::make_unique<Data>(read_text(own_path), own_path.native(), jinja::Dict());
    return;
  }
  if (!is_config) {
    data_ = std::make_unique<Data>(read_text(path), path.native(), jinja::Dict());
    return;
  }
  const ordered_json config = json_of(read_text(config_path), config_path.native());
  const std::string source =
      has_own ? read_text(own_path) : template_in(config, name, config_path.native());
  data_ = std::make_unique<Data>(source, has_own ? own_path.native() : config_path.native(),
                                 config.is_object() ? special_tokens(config) : jinja::Dict());
}

std::string ChatTemplate::operator()(const std::vector<ChatMessage>& messages,
                                     const ChatOptions& options) const {
  ordered_json list = ordered_json::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  return data_->run(list, options);
}

std::string ChatTemplate::of_json(std::string_view messages, const ChatOptions& options) const {
  const ordered_json list = json_of(messages, "messages of a chat");
  if (!list.is_array()) throw UserError("messages of a chat are no JSON list");
  return data_->run(list, options);
}

}  // namespace tinyshard
