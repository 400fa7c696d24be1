// A Model encodes words: it looks up the parts of a word in its vocabulary.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/tokenizers/part.h"

namespace tinyshard::tokenizers {

// The tables of a model as the file has them, beside the rest of its part.
struct ModelTables {
  std::unordered_map<std::string, int32_t> vocab;
  std::vector<std::pair<std::string, double>> scores;  // of a Unigram, by token, in its order
  std::vector<std::pair<std::string, std::string>> merges;
};

class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of a word, which is UTF-8 but for bytes that are part of no character.
  virtual void encode(std::string_view word, std::vector<int32_t>& out) const = 0;

  const std::unordered_map<std::string, int32_t>& vocab() const { return vocab_; }

 protected:
  explicit Model(std::unordered_map<std::string, int32_t> vocab) : vocab_(std::move(vocab)) {}

  // Returns the token's number, or -1.
  int32_t find(const std::string& token) const {
    const auto found = vocab_.find(token);
    return found == vocab_.end() ? -1 : found->second;
  }
  // Finds the tokens that spell bytes, <0x00> to <0xFF>, of a model with byte_fallback.
  std::vector<int32_t> byte_tokens() const;

 private:
  std::unordered_map<std::string, int32_t> vocab_;
};

// Makes the model that the part describes. A file of older versions does not name its kind.
std::unique_ptr<Model> make_model(const Part& part, ModelTables tables);

std::unique_ptr<Model> make_bpe(const Part& part, ModelTables tables);
std::unique_ptr<Model> make_unigram(const Part& part, ModelTables tables);
std::unique_ptr<Model> make_word_piece(const Part& part, ModelTables tables);
std::unique_ptr<Model> make_word_level(const Part& part, ModelTables tables);

// Appends the byte tokens of a text. Returns false, and appends nothing, where one is missing.
bool append_bytes(const std::vector<int32_t>& byte_tokens, std::string_view text,
                  std::vector<int32_t>& out);

}  // namespace tinyshard::tokenizers
