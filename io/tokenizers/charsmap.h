// SentencePiece's table of replacements, which its models carry instead of naming a normal form:
// "ﬁ" becomes "fi", a full-width "Ａ" becomes "A", a tab a space.
//
// The table is a trie in an array of 32-bit units, and texts that end with a zero byte. A unit says
// which byte leads to it and where its children begin; a child of the byte 0 holds the place of a text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::tokenizers {

class Charsmap {
 public:
  // Reads the table from base64. Returns nothing where it is no such table.
  static std::optional<Charsmap> parse(std::string_view base64);

  std::string operator()(std::string_view text) const;

 private:
  // Returns the replacement of the shortest beginning of `text` that has one; the reference library
  // puts it in the place of all of `text`.
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace tinyshard::tokenizers
