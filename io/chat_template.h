// The text of a chat as a model expects it, by the template that the model's folder carries: a
// program in Jinja in tokenizer_config.json or chat_template.jinja.
//
//   ChatTemplate chat("model");                                   // the folder
//   std::string text = chat({{"system", "Be brief."}, {"user", "What is a tensor?"}});
//   std::vector<int32_t> ids = tokenizer.encode(text, false);     // the template names special tokens
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

struct ChatMessage {
  std::string role, content;  // "system", "user", "assistant"
};

struct ChatOptions {
  bool add_generation_prompt = true;  // ends where the model is to answer
  // More variables of the template, as a JSON object: {"enable_thinking": false, "tools": [...]}.
  std::string variables = "{}";
};

class ChatTemplate {
 public:
  // A folder of a model, its tokenizer_config.json or a file with the template itself. Of several
  // templates of one file, `name` chooses. UserError where there is none.
  explicit ChatTemplate(const std::filesystem::path& path, const std::string& name = "default");
  // The text of a template; `label` names it in errors.
  static ChatTemplate parse(std::string_view source, std::string_view label);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // UserError where the template refuses the messages (two of one role, say), with its words.
  std::string operator()(const std::vector<ChatMessage>& messages,
                         const ChatOptions& options = {}) const;
  // Makes the text of messages that have more than a role and a text, from a JSON list.
  std::string of_json(std::string_view messages, const ChatOptions& options = {}) const;

 private:
  struct Data;
  explicit ChatTemplate(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

}  // namespace tinyshard
