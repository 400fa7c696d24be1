// Models of whole words. WordPiece takes the longest token that a word begins with, then the longest
// that what is left goes on with, which have a prefix: "walking" is "walk" "##ing". A word that cannot
// be cut so is unknown. WordLevel knows whole words only.
#include <fmt/format.h>

#include "io/tokenizers/model.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

int32_t unknown_of(const Part& part, const ModelTables& tables, const char* otherwise) {
  const std::string name = part.text("unk_token", otherwise);
  const auto found = tables.vocab.find(name);
  if (found == tables.vocab.end())
    throw part.error(fmt::format("its unk_token {} is no token", io::in_quotes(name)));
  return found->second;
}

class WordPiece final : public Model {
 public:
  WordPiece(const Part& part, ModelTables tables)
      : Model(std::move(tables.vocab)),
        unknown_(unknown_of(part, {vocab(), {}, {}}, "[UNK]")),
        prefix_(part.text("continuing_subword_prefix", "##")),
        max_letters_(part.number("max_input_chars_per_word", 100)) {}

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    std::vector<size_t> ends;  // of each character
    for (size_t at = 0; at < word.size();) ends.push_back(at += letter_at(word, at).size);
    if (static_cast<int64_t>(ends.size()) > max_letters_) return out.push_back(unknown_);
    const size_t before = out.size();
    for (size_t begin = 0, letter = 0; begin < word.size();) {
      size_t last = ends.size();
      int32_t token = -1;
      for (; last > letter; --last) {
        std::string piece(word.substr(begin, ends[last - 1] - begin));
        token = find(begin > 0 ? prefix_ + piece : piece);
        if (token >= 0) break;
      }
      if (token < 0) {
        out.resize(before);
        return out.push_back(unknown_);
      }
      out.push_back(token);
      begin = ends[last - 1];
      letter = last;
    }
  }

 private:
  int32_t unknown_;
  std::string prefix_;
  int64_t max_letters_;
};

class WordLevel final : public Model {
 public:
  WordLevel(const Part& part, ModelTables tables)
      : Model(std::move(tables.vocab)), unknown_(find(part.text("unk_token", "<unk>"))) {}

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    const int32_t token = find(std::string(word));
    if (token >= 0 || unknown_ >= 0) out.push_back(token >= 0 ? token : unknown_);
  }

 private:
  int32_t unknown_;
};

}  // namespace

std::unique_ptr<Model> make_word_piece(const Part& part, ModelTables tables) {
  return std::make_unique<WordPiece>(part, std::move(tables));
}

std::unique_ptr<Model> make_word_level(const Part& part, ModelTables tables) {
  return std::make_unique<WordLevel>(part, std::move(tables));
}

}  // namespace tinyshard::tokenizers
