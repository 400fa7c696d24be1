// A regular expression of tokenizer.json. The reference library reads it with Oniguruma in that
// library's own syntax, and so do we: \p{Han}, [a-z&&[^aeiou]] and (?m:.) mean the same here.
// Whatever a file asks for, a search ends and its memory is bounded. A compiled pattern takes up to
// 3 KiB for each of its bytes, so whoever reads a file bounds its length.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "io/tokenizers/part.h"

struct re_pattern_buffer;  // Oniguruma's regex_t

namespace tinyshard::tokenizers {

class Pattern {
 public:
  // FormatError with the file's name, `label`, says why a pattern cannot be read.
  Pattern(std::string_view pattern, std::string label);
  // Reads a regular expression or the letters themselves: {"Regex": "\\s+"}, {"String": "."}.
  static Pattern of(const Part& part);

  // Calls visit(begin, end, is_match) for each match in `text`, which is UTF-8, and for what lies
  // between matches. A match of nothing is an edge between two pieces. UserError where a search
  // takes too long. Const: many threads may cut at once.
  using Visit = std::function<void(size_t begin, size_t end, bool is_match)>;
  void cut(std::string_view text, const Visit& visit) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* regex) const;
  };
  std::unique_ptr<re_pattern_buffer, Free> regex_;
  std::string label_;
};

}  // namespace tinyshard::tokenizers
