// Where the uniform distributions end that weights and biases start from.
#pragma once
#include <cmath>
#include <cstdint>

namespace tinyshard::nn {

// 1 / sqrt(fan_in), the number of inputs of an output. Outputs of nothing are zero.
inline double uniform_bound(int64_t fan_in) {
  return fan_in > 0 ? 1 / std::sqrt(double(fan_in)) : 0;
}

}  // namespace tinyshard::nn
