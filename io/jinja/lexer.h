// Cuts a template into texts and tags, and tags into tokens. White space beside tags goes as the
// templates of models expect it (trim_blocks and lstrip_blocks): the newline behind {% ... %}, and the
// blanks before it where nothing else stands on its line; "-" inside of a tag takes all of it.
//
//   "{% if a %}\n  {{ b }}!"     Block: if a     Text: "  "     Print: b     Text: "!"
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::jinja {

struct Token {
  enum Kind { Name, Text, Integer, Float, Operator, End } kind = End;
  std::string text;
};

struct Piece {
  enum Kind { Text, Print, Block } kind = Text;
  std::string text;           // of a Text
  std::vector<Token> tokens;  // of the others, an End behind the last
  size_t line = 1;
};

std::vector<Piece> cut_template(std::string_view source);

}  // namespace tinyshard::jinja
