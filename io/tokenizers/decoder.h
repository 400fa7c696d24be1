// Makes text of tokens' spellings, step by step as a file says: byte letters become bytes, "▁" a
// space, "##ing" goes on with the word before it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/tokenizers/part.h"

namespace tinyshard::tokenizers {

class Decoder {
 public:
  Decoder() = default;
  explicit Decoder(const Part& part);  // FormatError for a step that is not known

  // Bytes, which are UTF-8 where the tokens say so. Without steps, words with a space between them.
  std::string operator()(std::vector<std::string> tokens) const;

 private:
  using Step = std::function<void(std::vector<std::string>& tokens)>;

  void add(const Part& part);
  void add_each(std::function<std::string(const std::string& token, bool first, bool last)> change);

  std::vector<Step> steps_;
  bool joins_ = false;  // there is a decoder, so nothing stands between tokens
};

}  // namespace tinyshard::tokenizers
