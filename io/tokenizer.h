// Text to tokens and back, as tokenizer.json of Hugging Face's tokenizers describes it: byte-pair
// encoding of bytes (GPT-2, Llama 3, Qwen) or of characters (Llama 2, Mistral, Gemma, CLIP), Unigram
// (T5, XLM-R) and WordPiece (BERT). UserError names what a file asks for that is not known here rather
// than giving other tokens.
//
//   Tokenizer tokenizer("model/tokenizer.json");             // or the folder
//   std::vector<int32_t> ids = tokenizer.encode("Hello");
//   std::string text = tokenizer.decode(ids);
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

class Tokenizer {
 public:
  explicit Tokenizer(const std::filesystem::path& path);
  // The text of a tokenizer.json; `label` names it in errors.
  static Tokenizer parse(std::string_view text, std::string_view label);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The tokens of a text in UTF-8; what is not UTF-8 is encoded byte by byte. Special tokens that
  // stand in the text are tokens. With add_special, those around it that the file's template asks
  // for (a beginning of the text) are added. All tokens come: a truncation or a padding that the
  // file was saved with does not apply. Const: many threads may encode at once.
  std::vector<int32_t> encode(std::string_view text, bool add_special = true) const;
  // The bytes of the tokens; a token may end inside of a character, which the next one completes.
  std::string decode(std::span<const int32_t> tokens, bool skip_special = false) const;

  std::optional<int32_t> id(std::string_view token) const;  // of a token as the file spells it
  int32_t vocab_size() const;                               // the largest token's number and 1

 private:
  struct Data;
  explicit Tokenizer(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

// Text that comes token by token: next() returns what a token adds to the text of those before it.
//
//   TokenStream stream(tokenizer);
//   for (const int32_t id : ids) std::cout << stream.next(id) << std::flush;
class TokenStream {
 public:
  // The stream refers to the tokenizer.
  explicit TokenStream(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string next(int32_t token);

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> window_;  // the tokens before, as far back as a text may depend on them
  size_t text_ = 0;              // how long their text is
};

}  // namespace tinyshard
