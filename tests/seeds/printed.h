// A page's output as a tensor literal: shape and kind of number must be those printed, values
// agree to the digits that are printed.
#pragma once
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "core/tensor/training.h"

namespace tinyshard::seeds {

inline void prints(const Tensor& got, const Tensor& printed) {
  ASSERT_EQ(got.shape(), printed.shape()) << got << " not " << printed;
  EXPECT_EQ(got.is_floating_point(), printed.is_floating_point()) << got << " not " << printed;
  EXPECT_EQ(got.dtype() == DType::Bool, printed.dtype() == DType::Bool) << got;
  const auto a = got.to_vector<double>(), b = printed.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1.01e-4 * (1 + std::abs(b[i]) / 4))
      FAIL() << "[" << i << "]: " << got << " not " << printed;
  }
}
inline void prints(const Tensor& got, double printed) {
  ASSERT_EQ(got.numel(), 1) << got;
  EXPECT_NEAR(got.item<double>(), printed, 1.01e-4 * (1 + std::abs(printed) / 4));
}

}  // namespace tinyshard::seeds
