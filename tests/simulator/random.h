// Numbers drawn from a seed: the same on every machine, unlike the standard library's distributions.
#pragma once
#include <chrono>
#include <cstdint>

namespace simulator {

using Time = std::chrono::nanoseconds;  // since the run began

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  int between(int least, int most) { return least + below(most - least + 1); }
  bool chance(int percent) { return below(100) < percent; }
  Time up_to(Time most) {
    return Time(static_cast<int64_t>(next() % static_cast<uint64_t>(most.count() + 1)));
  }

 private:
  uint64_t state_;
};

}  // namespace simulator
