// Texts in one of the normal forms of Unicode, before they are cut into words: "e" and an acute accent
// are one letter in NFC, "ﬀ" is two in NFKC.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

class TokenizerNormalizer {
 public:
  // NFC, NFD, NFKC or NFKD; false for another name. Forms are made one after the other.
  bool add(std::string_view form);
  bool empty() const { return forms_.empty(); }
  // `text` is UTF-8.
  std::string operator()(std::string_view text) const;

 private:
  std::vector<int> forms_;  // options of utf8proc
};

}  // namespace tinyshard
