// Convolutions of volumes against loops.
#include <cmath>

#include <gtest/gtest.h>

#include "core/nn/nn.h"

namespace tinyshard::conv3d_test {
namespace {

TEST(Conv3d, IsALoop) {
  const nn::Conv3d conv(2, 3, 2, {.stride = 2, .padding = 1});
  EXPECT_EQ(conv.weight.shape(), (Dims{3, 2, 2, 2, 2}));
  const Tensor x = Tensor::randn({1, 2, 4, 4, 4}).realize();
  const auto in = x.to_vector<double>(), w = conv.weight.to_vector<double>(),
             b = conv.bias.to_vector<double>();
  const Tensor y = conv(x);
  ASSERT_EQ(y.shape(), (Dims{1, 3, 3, 3, 3}));
  const auto got = y.to_vector<double>();
  size_t at = 0;
  for (int o = 0; o < 3; ++o)
    for (int d = 0; d < 3; ++d)
      for (int h = 0; h < 3; ++h)
        for (int v = 0; v < 3; ++v) {
          double sum = b[size_t(o)];
          for (int c = 0; c < 2; ++c)
            for (int k = 0; k < 8; ++k) {
              const int p = 2 * d + k / 4 - 1, q = 2 * h + k / 2 % 2 - 1, r = 2 * v + k % 2 - 1;
              if (std::min({p, q, r}) < 0 || std::max({p, q, r}) > 3) continue;
              sum += in[size_t(((c * 4 + p) * 4 + q) * 4 + r)] * w[size_t((o * 2 + c) * 8 + k)];
            }
          EXPECT_NEAR(got[at++], sum, 1e-5);
        }
}

// <conv(x), y> = <x, transposed(y)> for one weight.
TEST(Conv3d, ItsTransposeIsItsTranspose) {
  nn::Conv3d conv(2, 3, {2, 3, 1}, {.stride = 2, .bias = false});
  nn::ConvTranspose3d back(3, 2, {2, 3, 1}, {.stride = 2, .bias = false});
  back.weight.assign(conv.weight);
  const Tensor x = Tensor::randn({2, 2, 4, 5, 3}).realize();
  const Tensor y = Tensor::randn({2, 3, 2, 2, 2}).realize();
  EXPECT_NEAR((conv(x) * y).sum().item<float>(), (x * back(y)).sum().item<float>(), 1e-3);
}

}  // namespace
}  // namespace tinyshard::conv3d_test
