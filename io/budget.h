// Limits the memory that reading a file takes. A few bytes of a hostile file can ask for much: a
// reader charges what it is about to keep, and gets a FormatError instead of memory once that is out
// of proportion to the file. A number or a name of a few bytes becomes a value of forty and more:
// files which hold little else (thousands of small tensors, the losses of a run) live on kAtLeast.
// With what a reader needs beside what it keeps that is at most twice the file and 1 MiB.
#pragma once
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "io/errors.h"

namespace tinyshard::io {

class Budget {
 public:
  static constexpr uint64_t kAtLeast = 768 << 10;
  static constexpr uint64_t kTimes = 2;  // as many bytes as the file has

  Budget(std::string file, uint64_t file_bytes)
      : file_(std::move(file)), limit_(kTimes * file_bytes + kAtLeast) {}

  bool has(uint64_t bytes) const { return bytes <= limit_ - used_; }
  void charge(uint64_t bytes) {
    if (bytes > limit_ - used_) {
      throw FormatError(file_, fmt::format("its contents take more than {} bytes of memory, which "
                                           "is out of proportion to the file",
                                           limit_));
    }
    used_ += bytes;
  }

 private:
  std::string file_;
  uint64_t limit_, used_ = 0;
};

}  // namespace tinyshard::io
