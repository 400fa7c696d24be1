// Convolutions of volumes against loops.
#include <cmath>
#include <string>
#include <vector>

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
              const int x = ((c * 4 + p) * 4 + q) * 4 + r, y = (o * 2 + c) * 8 + k;
              sum += in[size_t(x)] * w[size_t(y)];
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

// A convolution by its terms: visit(place in the result, in x, in the weight) for each product.
struct Form {
  int64_t n, in, out, groups;
  Dims size, kernel, stride, dilation, padding;

  Dims made() const {
    Dims d;
    for (size_t i = 0; i < 3; ++i)
      d.push_back((size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1);
    return d;
  }
  Dims x_shape() const { return {n, in, size[0], size[1], size[2]}; }
  Dims w_shape() const { return {out, in / groups, kernel[0], kernel[1], kernel[2]}; }
  Dims y_shape() const { return {n, out, made()[0], made()[1], made()[2]}; }

  template <class Visit>
  void visit(const Visit& term) const {
    const Dims m = made();
    const int64_t taps = kernel[0] * kernel[1] * kernel[2], count = m[0] * m[1] * m[2];
    for (int64_t b = 0; b < n; ++b)
      for (int64_t o = 0; o < out; ++o)
        for (int64_t p = 0; p < count; ++p)
          for (int64_t c = 0; c < in / groups; ++c)
            for (int64_t t = 0; t < taps; ++t) {
              const int64_t at[] = {p / (m[1] * m[2]), p / m[2] % m[1], p % m[2]};
              const int64_t tap[] = {t / (kernel[1] * kernel[2]), t / kernel[2] % kernel[1],
                                     t % kernel[2]};
              int64_t from = b * in + o / (out / groups) * (in / groups) + c;
              bool inside = true;
              for (size_t i = 0; i < 3; ++i) {
                const int64_t q = at[i] * stride[i] + tap[i] * dilation[i] - padding[i];
                inside = inside && q >= 0 && q < size[i];
                from = from * size[i] + q;
              }
              if (inside)
                term(size_t((b * out + o) * count + p), size_t(from),
                     size_t((o * (in / groups) + c) * taps + t));
            }
  }
};

void expect_near(const Tensor& got, const std::vector<double>& want, double limit,
                 const std::string& what) {
  const auto values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(values[i], want[i], limit * (1 + std::abs(want[i]))) << what << ' ' << i;
}

TEST(Conv3d, HasTheTermsOfItsDefinition) {
  const std::vector<Form> forms{
      {2, 3, 4, 1, {5, 6, 7}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
      {1, 4, 6, 2, {6, 5, 4}, {2, 3, 1}, {2, 1, 2}, {1, 2, 1}, {0, 2, 1}},
      {2, 2, 2, 2, {7, 4, 5}, {3, 1, 2}, {3, 2, 1}, {2, 1, 3}, {2, 0, 1}},
  };
  for (const Form& f : forms) {
    for (DType type : {DType::F32, DType::F64, DType::BF16}) {
      if (type == DType::F64 && f.groups > 1) continue;
      // Draws small whole numbers, which bf16 holds.
      auto drawn = [&](const Dims& shape, uint64_t k) {
        return ((Tensor::arange(product(shape)) * int64_t(k + 5) % 7 - 3).reshape(shape))
            .cast(type)
            .clone()
            .realize();
      };
      const Tensor x = drawn(f.x_shape(), 0), w = drawn(f.w_shape(), 1), g = drawn(f.y_shape(), 3);
      const auto xs = x.to_vector<double>(), ws = w.to_vector<double>(), gs = g.to_vector<double>();
      std::vector<double> y(gs.size()), dx(xs.size()), dw(ws.size());
      f.visit([&](size_t o, size_t i, size_t k) {
        y[o] += xs[i] * ws[k], dx[i] += gs[o] * ws[k], dw[k] += gs[o] * xs[i];
      });
      const double limit = type == DType::BF16 ? 0.005 : 1e-5;
      const std::string what = to_string(f.x_shape()) + std::string(name(type));
      const ConvOptions options{.groups = f.groups,
                                .stride = Ints(f.stride),
                                .dilation = Ints(f.dilation),
                                .padding = Ints(f.padding)};
      const Tensor made = x.conv2d(w, {}, options);
      const auto gradients = made.gradient({x, w}, g);
      EXPECT_EQ(made.dtype(), type);
      expect_near(made, y, limit, what);
      expect_near(gradients[0], dx, 2 * limit, what + " by x");
      expect_near(gradients[1], dw, limit, what + " by w");
      // The end that no window reaches is padding of the transposed one.
      Dims extra;
      for (size_t i = 0; i < 3; ++i)
        extra.push_back((f.size[i] + 2 * f.padding[i] - f.dilation[i] * (f.kernel[i] - 1) - 1) %
                        f.stride[i]);
      const Tensor back = g.conv_transpose2d(w, {},
                                             {.groups = f.groups,
                                              .stride = Ints(f.stride),
                                              .dilation = Ints(f.dilation),
                                              .padding = Ints(f.padding),
                                              .output_padding = Ints(extra)});
      ASSERT_EQ(back.shape(), f.x_shape()) << what;
      expect_near(back, dx, limit, what + " transposed");
    }
  }
}

}  // namespace
}  // namespace tinyshard::conv3d_test
