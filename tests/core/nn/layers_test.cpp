// Shapes, initial values and mistakes of layers; golden_test has their numbers.
#include <cmath>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/nn.h"

namespace tinyshard::layers_test {
namespace {

std::string message(const auto& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}
#define EXPECT_MENTIONS(call, text) \
  EXPECT_NE(message([&] { call; }).find(text), std::string::npos) << message([&] { call; })

std::pair<double, double> range(const Tensor& t) {
  return {t.min().item<double>(), t.max().item<double>()};
}

TEST(Layers, StartWithinTheirBounds) {
  nn::Linear linear(64, 1000);
  auto [low, high] = range(linear.weight);
  EXPECT_GE(low, -0.125);
  EXPECT_LE(high, 0.125);
  EXPECT_LT(low, -0.12);
  EXPECT_GT(high, 0.12);
  EXPECT_NEAR(linear.bias.mean().item<double>(), 0, 0.02);

  nn::Conv2d conv(4, 100, 4);
  EXPECT_LE(range(conv.weight).second, 0.125);
  EXPECT_GT(range(conv.weight).second, 0.12);
  EXPECT_EQ(range(nn::LayerNorm(8).weight), (std::pair(1.0, 1.0)));
  EXPECT_EQ(range(nn::LayerNorm(8).bias), (std::pair(0.0, 0.0)));
}

TEST(Layers, OfNoInputsGiveZeros) {
  nn::Linear linear(0, 5);
  EXPECT_EQ(linear(Tensor::zeros({2, 0})).to_vector<float>(), std::vector<float>(10, 0));
  EXPECT_EQ(nn::Conv2d(0, 2, 3).bias.to_vector<float>(), std::vector<float>(2, 0));
}

TEST(Layers, DifferFromEachOther) {
  nn::Linear a(4, 4), b(4, 4);
  EXPECT_NE(a.weight.to_vector<float>(), b.weight.to_vector<float>());
  Tensor::manual_seed(1);
  nn::Linear c(4, 4);
  Tensor::manual_seed(1);
  nn::Linear d(4, 4);
  EXPECT_EQ(c.weight.to_vector<float>(), d.weight.to_vector<float>());
}

TEST(Layers, LeaveOutWhatIsNotAskedFor) {
  EXPECT_EQ(nn::parameters(nn::Linear(2, 2, {.bias = false})).size(), 1u);
  EXPECT_EQ(nn::parameters(nn::LayerNorm(2, {.affine = false})).size(), 0u);
  EXPECT_EQ(nn::parameters(nn::BatchNorm(2, {.track_running_stats = false})).size(), 2u);
  EXPECT_EQ(nn::parameters(nn::BatchNorm(2)).size(), 5u);
  EXPECT_FALSE(nn::BatchNorm(2).running_mean.is_param());
  EXPECT_TRUE(nn::BatchNorm(2).weight.is_param());
}

TEST(Layers, SamePaddingKeepsTheSize) {
  Tensor x = Tensor::ones({1, 2, 7, 9});
  EXPECT_EQ(nn::Conv2d(2, 3, 4, {.same = true, .dilation = 2})(x).shape(), (Dims{1, 3, 7, 9}));
  EXPECT_EQ(nn::Conv2d(2, 3, {3, 2}, {.same = true})(x).shape(), (Dims{1, 3, 7, 9}));
  EXPECT_EQ(nn::Conv1d(2, 3, 5, {.same = true})(Tensor::ones({1, 2, 8})).shape(), (Dims{1, 3, 8}));
}

TEST(Layers, SizesOfNormsAreListsOrNumbers) {
  EXPECT_EQ(nn::LayerNorm({16}).weight.shape(), (Dims{16}));
  EXPECT_EQ(nn::LayerNorm(16).weight.shape(), (Dims{16}));
  EXPECT_EQ(nn::LayerNorm({16, 8}).weight.shape(), (Dims{16, 8}));
  EXPECT_FALSE(nn::LayerNorm({16}, {.affine = false}).weight.defined());
  EXPECT_EQ(nn::LayerNorm2d({4})(Tensor::ones({2, 4, 3, 3})).shape(), (Dims{2, 4, 3, 3}));
}

TEST(Layers, EmbeddingsTakeIndicesOfAnyShape) {
  nn::Embedding table(10, 4);
  EXPECT_EQ(table(Tensor{{1, 2, 3}, {4, 5, 6}}).shape(), (Dims{2, 3, 4}));
  EXPECT_EQ(table(Tensor{7}).to_vector<float>(), table.weight[7].to_vector<float>());
}

TEST(Layers, LstmStepsStartFromZero) {
  nn::LSTMCell cell(3, 5);
  Tensor x = Tensor::rand({2, 3});
  auto [h, c] = cell(x);
  auto [h0, c0] = cell(x, Tensor::zeros({2, 5}), Tensor::zeros({2, 5}));
  EXPECT_EQ(h.shape(), (Dims{2, 5}));
  EXPECT_EQ(h.to_vector<float>(), h0.to_vector<float>());
  EXPECT_EQ(c.to_vector<float>(), c0.to_vector<float>());
}

// A penalty on a gradient takes the second derivatives, to which the mean belongs.
TEST(Layers, BatchNormHasTheSecondDerivativesOfItsFormula) {
  const TrainingMode on;
  const nn::BatchNorm norm(1, {.affine = false, .track_running_stats = false});
  const Tensor x = Tensor(std::vector<double>{1, 2, 4}, {3, 1}).realize();
  auto second = [&](const Tensor& y) {
    const Tensor slope = (y * y * y).sum().gradient({x})[0];
    return slope[0].sum().gradient({x})[0].to_vector<double>();
  };
  const Tensor centred = x - x.mean(0);
  const std::vector<double> got = second(norm(x)),
                            want = second(centred * (centred.square().mean(0) + 1e-5).rsqrt());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9) << i;
}

TEST(Layers, BatchNormLearnsNothingOfAnEmptyBatch) {
  const nn::BatchNorm norm(2);
  EXPECT_EQ(norm(Tensor::ones({0, 2})).numel(), 0) << "outside of training";
  TrainingMode on;
  EXPECT_MENTIONS(norm(Tensor::ones({0, 2})), "BatchNorm: f32[0, 2] has no values to learn from");
  EXPECT_EQ(norm.running_mean.to_vector<float>(), (std::vector<float>{0, 0}));
  const nn::BatchNorm forgetful(2, {.track_running_stats = false});
  EXPECT_EQ(forgetful(Tensor::ones({0, 2})).numel(), 0);
}

TEST(Layers, NormsOfNoRowsHaveNone) {
  TrainingMode on;
  for (const Dims& shape : {Dims{0, 4}, Dims{0, 4, 3}, Dims{0, 4, 3, 3}, Dims{2, 4, 0, 3}}) {
    const nn::GroupNorm groups(2, 4);
    const nn::InstanceNorm instances(4);
    Tensor x = Tensor::ones(shape);
    EXPECT_EQ(groups(x).to_vector<float>(), std::vector<float>{});
    EXPECT_EQ(instances(x).shape(), shape);
    (groups(x).sum() + instances(x).sum()).backward();
    EXPECT_EQ(groups.weight.grad().to_vector<float>(), std::vector<float>(4, 0));
    EXPECT_EQ(instances.bias.grad().to_vector<float>(), std::vector<float>(4, 0));
  }
}

TEST(Layers, BatchNormUsesWhatItLearnedOutsideOfTraining) {
  nn::BatchNorm norm(2);
  Tensor x = Tensor::randn({16, 2, 3, 3}) * 2 + 5;
  {
    TrainingMode on;
    for (int i = 0; i < 50; ++i) {
      norm(x);
      Tensor::realize(nn::parameters(norm));
    }
  }
  EXPECT_NEAR(norm.running_mean.to_vector<float>()[0], 5, 0.6);
  Tensor y = norm(x);
  EXPECT_NEAR(y.mean().item<float>(), 0, 0.1);
  EXPECT_NEAR(y.std().item<float>(), 1, 0.1);
}

TEST(Layers, MistakesNameTheLayerAndTheCaller) {
  EXPECT_MENTIONS(nn::Linear(3, 4)(Tensor::ones({2, 5})), "Linear: ");
  EXPECT_MENTIONS(nn::Linear(3, 4)(Tensor::ones({2, 5})), "(layers_test.cpp:");
  EXPECT_MENTIONS(nn::LayerNorm(3)(Tensor::ones({2, 5})),
                  "LayerNorm: the last dims should be [3], got f32[2, 5]");
  EXPECT_MENTIONS(nn::BatchNorm(3)(Tensor::ones({2, 5})),
                  "BatchNorm: expected [n, 3, ...], got f32[2, 5]");
  EXPECT_MENTIONS(nn::GroupNorm(3, 7), "GroupNorm: 3 groups do not divide 7 channels");
  EXPECT_MENTIONS(nn::GroupNorm(3, 6)(Tensor::ones({1, 5, 2})), "GroupNorm: expected [n, 6, ...]");
  EXPECT_MENTIONS(nn::Conv2d(3, 4, 3, {.groups = 2}),
                  "2 groups do not divide 3 input and 4 output channels");
  EXPECT_MENTIONS(nn::Conv2d(3, 4, 3, {.stride = 2, .same = true}),
                  "same padding needs stride 1, not [2]");
  EXPECT_MENTIONS(nn::LSTMCell(3, 4)(Tensor::ones({1, 3}), Tensor::ones({1, 4})),
                  "got only the hidden state");
  EXPECT_MENTIONS(nn::Embedding(3, 4)(Tensor::ones({2})), "Embedding: ");
}

}  // namespace
}  // namespace tinyshard::layers_test
