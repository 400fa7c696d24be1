// Types of layers: each result has its input's type and is as near to the exact one as one rounding
// allows, whatever type the weights are kept in. The exact one is the same layer in f64.
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "core/nn/nn.h"

namespace tinyshard::types_test {
namespace {

using Tensors = std::vector<Tensor>;

// Changes of a weight before the layer is called: `read` for those that products round to the
// input's type first, `kept` to the others.
struct Weights {
  std::function<void(Tensor&)> read, kept;
};

struct Layer {
  const char* name;
  Dims input;
  std::function<Tensors(const Tensor& x, const Weights& w)> run;
  double roundings;
};

void random(Tensor& t) {
  if (t.defined()) t = Tensor::randn(t.shape());
}

template <class Product>
Tensors product(Product&& layer, const Tensor& x, const Weights& w) {
  w.read(layer.weight), w.read(layer.bias);
  return {layer(x)};
}
template <class Norm>
Tensors norm(Norm&& layer, const Tensor& x, const Weights& w) {
  random(layer.weight), random(layer.bias);
  w.kept(layer.weight), w.kept(layer.bias);
  return {layer(x)};
}

const std::vector<Layer>& layers() {
  using T = const Tensor&;
  using W = const Weights&;
  // A product is rounded, and so is its sum with the bias.
  static const std::vector<Layer> rows = {
      {"Linear", {3, 40}, [](T x, W w) { return product(nn::Linear(40, 5), x, w); }, 2},
      {"LinearWithoutBias",
       {3, 40},
       [](T x, W w) { return product(nn::Linear(40, 5, {.bias = false}), x, w); },
       1},
      {"Conv1d", {2, 3, 9}, [](T x, W w) { return product(nn::Conv1d(3, 4, 3), x, w); }, 2},
      {"Conv2d",
       {2, 3, 6, 5},
       [](T x, W w) { return product(nn::Conv2d(3, 4, 3, {.padding = 1}), x, w); },
       2},
      {"Conv2dInGroups",
       {2, 4, 6, 5},
       [](T x, W w) {
         return product(nn::Conv2d(4, 6, 3, {.stride = 2, .groups = 2, .bias = false}), x, w);
       },
       1},
      {"ConvTranspose1d",
       {2, 3, 9},
       [](T x, W w) { return product(nn::ConvTranspose1d(3, 4, 3), x, w); },
       2},
      {"ConvTranspose2d",
       {2, 3, 4, 5},
       [](T x, W w) { return product(nn::ConvTranspose2d(3, 4, 3, {.stride = 2}), x, w); },
       2},
      {"ConvTransposeBeyond",
       {2, 3, 4},
       [](T x, W w) {
         return product(
             nn::ConvTranspose1d(3, 4, 3, {.stride = 2, .output_padding = 1, .bias = false}), x, w);
       },
       1},
      {"LSTMCell",
       {3, 6},
       [](T x, W w) {
         nn::LSTMCell cell(6, 4);
         random(cell.bias_ih), random(cell.bias_hh);
         w.read(cell.weight_ih), w.read(cell.weight_hh), w.kept(cell.bias_ih), w.kept(cell.bias_hh);
         auto [h, c] = cell(x);
         return Tensors{h, c};
       },
       1},
      {"LSTMCellWithState",
       {3, 4},
       [](T x, W w) {
         nn::LSTMCell cell(4, 4, {.bias = false});
         w.read(cell.weight_ih), w.read(cell.weight_hh);
         auto [h, c] = cell(x, x.flip(0), x.flip(1));
         return Tensors{h, c};
       },
       1},
      {"LayerNorm", {5, 33}, [](T x, W w) { return norm(nn::LayerNorm(33), x, w); }, 1},
      {"LayerNormWithoutWeights",
       {5, 33},
       [](T x, W w) { return norm(nn::LayerNorm(33, {.affine = false}), x, w); },
       1},
      {"LayerNorm2d", {2, 8, 3, 4}, [](T x, W w) { return norm(nn::LayerNorm2d(8), x, w); }, 1},
      {"RMSNorm",
       {5, 33},
       [](T x, W w) {
         nn::RMSNorm layer(33);
         random(layer.weight), w.kept(layer.weight);
         return Tensors{layer(x)};
       },
       1},
      {"GroupNorm", {2, 6, 5}, [](T x, W w) { return norm(nn::GroupNorm(3, 6), x, w); }, 1},
      {"InstanceNorm", {2, 6, 3, 5}, [](T x, W w) { return norm(nn::InstanceNorm(6), x, w); }, 1},
      {"BatchNorm",
       {4, 6, 5},
       [](T x, W w) {
         TrainingMode on;
         return norm(nn::BatchNorm(6), x, w);
       },
       1},
      {"BatchNormAsLearned",
       {4, 6, 5},
       [](T x, W w) {
         nn::BatchNorm layer(6);
         layer.running_mean = Tensor::randn({6}), layer.running_var = Tensor::rand({6}) + 0.5;
         w.kept(layer.running_mean), w.kept(layer.running_var);
         return norm(layer, x, w);
       },
       1},
  };
  return rows;
}

struct Type {
  DType dtype;
  double unit;  // the largest relative error of one rounding
};
constexpr Type kTypes[] = {{DType::BF16, 0x1p-8}, {DType::F16, 0x1p-11}, {DType::F32, 0x1p-20}};

class LayerTypes : public ::testing::TestWithParam<std::tuple<size_t, Type>> {};

TEST_P(LayerTypes, AreThoseOfTheInput) {
  auto [index, type] = GetParam();
  const Layer& layer = layers()[index];
  Tensor::manual_seed(7);
  Tensor x = (Tensor::randn(layer.input) * 2 + 1).cast(type.dtype).realize();
  Tensors weights;
  auto collect = [&](Tensor& t) {
    if (t.defined()) weights.push_back(t.is_param_());
  };
  Tensors wide_weights;
  auto widen = [&](Tensor& t) {
    if (t.defined()) wide_weights.push_back(t = t.cast(DType::F64).contiguous().realize());
  };
  auto round_and_widen = [&, dtype = type.dtype](Tensor& t) {
    if (t.defined()) t = t.cast(dtype).realize(), widen(t);
  };
  Tensor::manual_seed(8);
  Tensors got = layer.run(x, {collect, collect});
  // Weights keep their type, and have gradients of it. Before a seed is set: that is a read.
  Tensor total = got[0].square().sum();
  Tensors gradients = total.gradient(weights);
  for (const Tensor& gradient : gradients) EXPECT_EQ(gradient.dtype(), DType::F32);
  Tensor::realize(gradients);
  Tensor::manual_seed(8);
  Tensors exact = layer.run(x.cast(DType::F64), {round_and_widen, widen});
  Tensors slopes = exact[0].square().sum().gradient(wide_weights);
  for (size_t i = 0; i < slopes.size(); ++i) {
    double largest = slopes[i].abs().max().item<double>();
    EXPECT_LE((gradients[i].to_double() - slopes[i]).abs().max().item<double>(),
              8 * type.unit * largest)
        << "gradient " << i;
  }
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].dtype(), type.dtype);
    ASSERT_EQ(got[i].shape(), exact[i].shape());
  }
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<double> a = got[i].to_vector<double>(), b = exact[i].to_vector<double>();
    double largest = 0;
    for (double v : b) largest = std::max(largest, std::abs(v));
    for (size_t e = 0; e < a.size(); ++e) {
      // A bias may take away most of a rounded product.
      double scale = layer.roundings > 1 ? layer.roundings * largest : std::abs(b[e]);
      EXPECT_NEAR(a[e], b[e], type.unit * 1.01 * scale + 2e-6 * (1 + largest)) << "element " << e;
    }
  }
}

std::string label(const ::testing::TestParamInfo<LayerTypes::ParamType>& info) {
  auto [index, type] = info.param;
  return std::string(layers()[index].name) + "_" + std::string(name(type.dtype));
}

INSTANTIATE_TEST_SUITE_P(All, LayerTypes,
                         ::testing::Combine(::testing::Range(size_t{0}, layers().size()),
                                            ::testing::ValuesIn(kTypes)),
                         label);

TEST(LayerTypesOf, IntegersAndTablesAreThoseOfTheWeights) {
  Tensor whole{{1, 2, 3}, {4, 5, 6}};
  nn::Linear linear(3, 2);
  Tensor y = linear(whole);
  EXPECT_EQ(y.dtype(), DType::F32);
  EXPECT_TRUE(y.allclose(linear(whole.to_float())));
  nn::LSTMCell cell(3, 2);
  EXPECT_TRUE(cell(whole).first.allclose(cell(whole.to_float()).first));
  nn::Embedding table(5, 3);
  EXPECT_EQ(table(Tensor{1, 2}).dtype(), DType::F32);
  table.weight = table.weight.cast(DType::BF16);
  EXPECT_EQ(table(Tensor{1, 2}).dtype(), DType::BF16);
}

TEST(LayerTypesOf, WhatBatchNormLearnsIsNotRounded) {
  TrainingMode on;
  Tensor::manual_seed(3);
  Tensor exact = Tensor::randn({8, 4, 16}) + 10;
  for (DType dtype : {DType::BF16, DType::F16}) {
    Tensor x = exact.cast(dtype).realize(), wide = x.cast(DType::F32).realize();
    nn::BatchNorm narrow(4), reference(4);
    Tensor y = narrow(x), expected = reference(wide);
    EXPECT_EQ(narrow.running_mean.dtype(), DType::F32);
    EXPECT_TRUE(narrow.running_mean.allclose(reference.running_mean, 1e-6, 0));
    EXPECT_TRUE(narrow.running_var.allclose(reference.running_var, 1e-6, 0));
    EXPECT_EQ(y.to_vector<float>(), expected.cast(dtype).to_vector<float>());
  }
  // Nor is it where all that is new is.
  set_default_float(DType::BF16);
  nn::BatchNorm all_narrow(4);
  set_default_float(DType::F32);
  EXPECT_EQ(all_narrow.weight.dtype(), DType::BF16);
  EXPECT_EQ(all_narrow.running_var.dtype(), DType::F32);
  // An f64 input is learned from, too.
  nn::BatchNorm learner(4);
  learner(exact.to_double()).realize();
  EXPECT_EQ(learner.running_mean.dtype(), DType::F32);
  EXPECT_NEAR(learner.running_mean.to_vector<double>()[0], 1, 0.1);
}

}  // namespace
}  // namespace tinyshard::types_test
