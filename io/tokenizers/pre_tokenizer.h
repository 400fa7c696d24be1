// Cuts normalized texts into the words that a model encodes one by one, step by step as a file says:
//
//   "Hi  there!"   WhitespaceSplit    "Hi" "there!"
//                  Punctuation        "Hi" "there" "!"
//   "Hi there"     Metaspace          "▁Hi" "▁there"
//                  ByteLevel          "Hi" "Ġthere"
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizers/part.h"

namespace tinyshard::tokenizers {

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(const Part& part);  // FormatError for a step that is not known

  // Calls word() for each word of a text in UTF-8. `first` says that a text begins with this piece,
  // and is not what follows an added token.
  using Word = std::function<void(std::string_view)>;
  void cut(std::string_view text, bool first, const Word& word) const { run(text, first, 0, word); }

  // Words are spelled in byte letters (unicode.h).
  bool is_byte_level() const { return byte_level_; }

 private:
  // Calls next(piece, first) for each piece.
  using Next = std::function<void(std::string_view piece, bool first)>;
  using Step = std::function<void(std::string_view text, bool first, const Next& next)>;

  void run(std::string_view text, bool first, size_t step, const Word& word) const;
  void add(const Part& part);
  void add_split(const Part& part);
  void add_metaspace(const Part& part);
  void add_byte_level(const Part& part);
  void count_pattern(const Part& part, size_t bytes);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  size_t patterns_ = 0, pattern_bytes_ = 0;
};

}  // namespace tinyshard::tokenizers
