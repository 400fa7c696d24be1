// Tokens that are cut out of texts as they stand there, before anything else looks at them: of those
// that begin first the longest. A token may ask for more: spaces beside it go with it (lstrip,
// rstrip), or letters beside it make it part of a word (single_word).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::tokenizers {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false;
};

class AddedTokens {
 public:
  void add(AddedToken token);

  // Calls token(id) for each that is found, and plain(text, begin) for what lies between two.
  void cut(std::string_view text,
           const std::function<void(std::string_view text, size_t begin)>& plain,
           const std::function<void(int32_t id)>& token) const;

 private:
  const AddedToken* find(std::string_view text, size_t at) const;

  std::array<std::vector<AddedToken>, 256> by_first_;
};

}  // namespace tinyshard::tokenizers
