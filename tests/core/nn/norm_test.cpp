// Norms of many elements: what a plan moves, forwards and backwards, and the values of the way in which the
// statistics of long images are taken.
#include <string>

#include <gtest/gtest.h>

#include "core/exec/executable.h"
#include "core/exec/runtime.h"
#include "core/nn/nn.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"
#include "core/tensor/training.h"

namespace tinyshard::norm_test {
namespace {

class PlanOfNorm : public ::testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL_H200"}});
  }
  void TearDown() override { Runtime::shutdown(); }
};

// How often the values go through memory for a norm, SiLU and both gradients.
template <class Norm>
double passes(const Norm& norm, const Tensor& weight) {
  const Tensor x = Tensor::zeros({64, 48, 56, 56}, DType::BF16).contiguous().realize();
  Jit step = [&](const Tensor& values, const Tensor& gradient) {
    const TrainingMode on;
    const Tensor y = norm(values).silu();
    std::vector<Tensor> results = y.gradient({values, weight}, gradient);
    results.push_back(y);
    return results;
  };
  step(x, x);
  const PlanSummary plan = summarize(step);
  return double(plan.bytes_read + plan.bytes_written) / double(x.nbytes());
}

// By hand 8: the statistics read x, the result reads it and is written; backwards the sums read x and the
// gradient, and so does the result, which is written. The gradient behind SiLU is stored in 16 bits
// besides.
TEST_F(PlanOfNorm, ReadsValuesNoMoreThanItMust) {
  const nn::BatchNorm batch(48);
  EXPECT_LE(passes(batch, batch.weight), 11.1);
  const nn::GroupNorm group(12, 48);
  EXPECT_LE(passes(group, group.weight), 10.1);
  const nn::LayerNorm2d layer(48);
  EXPECT_LE(passes(layer, layer.weight), 10.4);
}

// Long images are looked at one by one; the formula looks at all at once.
TEST(Norm, LongImagesHaveTheValuesAndGradientsOfTheFormula) {
  const TrainingMode on;
  const Tensor x =
      (Tensor::randn({5, 2, 330, 330}, DType::F64) * 3 + Tensor::arange(2).reshape({2, 1, 1}) * 50)
          .realize();
  const Tensor g = Tensor::randn(x.shape(), DType::F64).realize();
  const nn::BatchNorm norm(2, {.affine = false});
  const Dims axes{0, 2, 3};
  const Tensor mean = x.mean(axes, true), variance = (x - mean).square().mean(axes, true);
  const Tensor want = (x - mean) * (variance + 1e-5).rsqrt(), got = norm(x);
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-12);
  EXPECT_LT((norm.running_var - (variance.flatten() * (.1 * 544500 / 544499.) + .9))
                .abs()
                .max()
                .item<double>(),
            1e-5);
  auto slopes = [&](const Tensor& y) {
    const Tensor first = y.gradient({x}, g)[0];
    return std::pair{first, (first * g * y.detach()).sum().gradient({x})[0]};
  };
  const auto [first, second] = slopes(got);
  const auto [first_wanted, second_wanted] = slopes(want);
  EXPECT_LT((first - first_wanted).abs().max().item<double>(), 1e-12);
  EXPECT_LT((second - second_wanted).abs().max().item<double>(), 1e-12);
  EXPECT_GT(second_wanted.abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace tinyshard::norm_test
