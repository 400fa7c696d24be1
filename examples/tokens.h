// Training data of a language model: token files, the bytes of text, or random numbers. The last
// tenth is held out.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/training.h"

namespace training {

class Tokens {
 public:
  // "random"; a .bin file of 16-bit tokens, with or without the header of llm.c; a file or folder
  // of text, of which each byte is a token.
  // `vocabulary` is that of random numbers and of a .bin file.
  explicit Tokens(const std::string& source, int64_t vocabulary = 50257)
      : source_(source), vocabulary_(vocabulary) {
    if (source == "random") {
      count_ = kEndless;
    } else if (std::filesystem::path(source).extension() == ".bin") {
      file_.emplace(source);
      count_ = int64_t(file_->tokens().size());
    } else {
      text_ = io::read_corpus(source).text;
      count_ = int64_t(text_.size());
      vocabulary_ = 256;
    }
  }

  int64_t vocabulary() const { return vocabulary_; }
  bool are_bytes() const { return !is_random() && !file_; }
  std::string describe() const {
    if (is_random()) return "random numbers";
    return fmt::format("{}: {} {}", source_, count_, file_ ? "tokens" : "bytes");
  }

  // Pieces of `length` tokens for one step: [batch, length]. `first` is the number of the first one
  // among all pieces of the step.
  Tensor draw(bool held_out, int64_t batch, int64_t length, uint64_t seed, int64_t step,
              int64_t first) const {
    const int64_t border = count_ / 10 * 9, begin = held_out ? border : 0,
                  end = held_out ? count_ : border;
    if (end - begin < length) {
      throw UserError(fmt::format("{} has {} tokens; --context {} needs at least {}", source_,
                                  count_, length - 1, 10 * length));
    }
    std::vector<int32_t> tokens;
    tokens.reserve(size_t(batch * length));
    for (int64_t i = first; i < first + batch; ++i) {
      uint64_t random = random_number(seed, uint64_t(step), uint64_t(i));
      int64_t start = begin + int64_t(random % uint64_t(end - begin - length + 1));
      for (int64_t k = start; k < start + length; ++k) tokens.push_back(at(k));
    }
    return Tensor(tokens, {batch, length});
  }

 private:
  static constexpr int64_t kEndless = int64_t{1} << 40;

  bool is_random() const { return count_ == kEndless; }

  int32_t at(int64_t place) const {
    if (is_random()) return int32_t(mix(uint64_t(place)) % uint64_t(vocabulary_));
    if (!file_) return static_cast<unsigned char>(text_[size_t(place)]);
    int32_t token = file_->tokens()[size_t(place)];
    if (token >= vocabulary_) {
      throw UserError(fmt::format("{}: token {} is {}, the vocabulary has {}", source_, place,
                                  token, vocabulary_));
    }
    return token;
  }

  std::string source_;
  std::optional<io::TokenFile> file_;
  std::string text_;
  int64_t count_ = 0, vocabulary_;
};

}  // namespace training
