#pragma once
#include <chrono>

namespace tinyshard {

class Stopwatch {
 public:
  // Since it was made.
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tinyshard
