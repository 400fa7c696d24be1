// Changes texts before they are cut into words, step by step as a file says: normal forms of Unicode
// ("e" and an acute accent are one letter in NFC), lower case, accents, replacements.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizers/part.h"

namespace tinyshard::tokenizers {

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(const Part& part) { add(part); }  // FormatError for a step that is not known

  // Normalizes UTF-8; bytes that are none stay as they are. Sets `cut` where the text lost its
  // beginning: what is left does not stand where the text began.
  std::string operator()(std::string_view text, bool& cut) const;
  std::string operator()(std::string_view text) const {
    bool ignored = false;
    return (*this)(text, ignored);
  }

 private:
  using Step = std::function<std::string(std::string_view text, bool& cut)>;

  void add(const Part& part);
  void add_bert(const Part& part);
  void add_replace(const Part& part);

  std::vector<Step> steps_;
};

}  // namespace tinyshard::tokenizers
