// The gradient of every differentiable method against central differences in f64. A row gives the
// shapes of its inputs, the range of their values and the call; the differences replay a captured
// evaluation, so a row costs one compilation.
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard::gradient_test {
namespace {

using Tensors = std::vector<Tensor>;

struct Row {
  std::string name;
  std::vector<Dims> inputs;
  std::function<Tensor(const Tensors&)> call;
  double low = -2, high = 2;
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

Row unary(const char* name, Tensor (Tensor::*method)() const, double low = -2, double high = 2) {
  return {name, {{3, 4}}, [method](const Tensors& x) { return (x[0].*method)(); }, low, high};
}

const Tensor& labels() {
  static const Tensor t(std::vector<int64_t>{2, 0, 4});
  return t;
}
const Tensor& places() {  // rows and columns within [0, 3)
  static const Tensor t(std::vector<int32_t>{0, 2, 1, 2, 2, 0}, {2, 3});
  return t;
}

std::vector<Row> rows() {
  std::vector<Row> r = {
      unary("neg", &Tensor::neg),
      unary("abs", &Tensor::abs),
      unary("square", &Tensor::square),
      unary("sqrt", &Tensor::sqrt, 0.3, 3),
      unary("rsqrt", &Tensor::rsqrt, 0.3, 3),
      unary("reciprocal", &Tensor::reciprocal, 0.3, 3),
      unary("exp", &Tensor::exp),
      unary("exp2", &Tensor::exp2),
      unary("log", &Tensor::log, 0.3, 3),
      unary("log2", &Tensor::log2, 0.3, 3),
      unary("log10", &Tensor::log10, 0.3, 3),
      unary("sin", &Tensor::sin),
      unary("cos", &Tensor::cos),
      unary("tan", &Tensor::tan, -1, 1),
      unary("asin", &Tensor::asin, -0.9, 0.9),
      unary("acos", &Tensor::acos, -0.9, 0.9),
      unary("atan", &Tensor::atan),
      unary("sinh", &Tensor::sinh),
      unary("cosh", &Tensor::cosh),
      unary("tanh", &Tensor::tanh),
      unary("asinh", &Tensor::asinh),
      unary("acosh", &Tensor::acosh, 1.2, 3),
      unary("atanh", &Tensor::atanh, -0.8, 0.8),
      unary("erf", &Tensor::erf),
      unary("relu", &Tensor::relu),
      unary("relu6", &Tensor::relu6, -3, 9),
      unary("sigmoid", &Tensor::sigmoid),
      unary("sigmoid_far", &Tensor::sigmoid, -40, 40),
      unary("logsigmoid", &Tensor::logsigmoid),
      unary("hardswish", &Tensor::hardswish, -5, 5),
      unary("quick_gelu", &Tensor::quick_gelu),
      unary("swish", &Tensor::swish),
      unary("silu", &Tensor::silu),
      unary("mish", &Tensor::mish),
      unary("softsign", &Tensor::softsign),
      unary("T", &Tensor::T),
      unary("contiguous", &Tensor::contiguous),
      unary("contiguous_backward", &Tensor::contiguous_backward),
      unary("clone", &Tensor::clone),
  };
  auto add = [&r](const char* name, std::vector<Dims> inputs,
                  std::function<Tensor(const Tensors&)> call, double low = -2, double high = 2) {
    r.push_back({name, std::move(inputs), std::move(call), low, high});
  };
  auto one = [&add](const char* name, std::function<Tensor(const Tensor&)> call, double low = -2,
                    double high = 2) {
    add(name, {{3, 4}}, [call](const Tensors& x) { return call(x[0]); }, low, high);
  };
  // functions with parameters
  one("hardsigmoid", [](const Tensor& x) { return x.hardsigmoid(); }, -5, 5);
  one("hardtanh", [](const Tensor& x) { return x.hardtanh(); });
  one("leaky_relu", [](const Tensor& x) { return x.leaky_relu(0.1); });
  one("gelu_tanh", [](const Tensor& x) { return x.gelu(); });
  one("gelu_erf", [](const Tensor& x) { return x.gelu(true); });
  one("elu", [](const Tensor& x) { return x.elu(1.5); });
  one("celu", [](const Tensor& x) { return x.celu(1.5); });
  one("selu", [](const Tensor& x) { return x.selu(); });
  one("softplus", [](const Tensor& x) { return x.softplus(2); });
  one("clamp", [](const Tensor& x) { return x.clamp(-1, 1); });
  one(
      "pow_number", [](const Tensor& x) { return x.pow(3) + x.abs().pow(2.5) + x.pow(-2); }, 0.5,
      2);
  // several operands
  add("add", {{3, 4}, {4}}, [](const Tensors& x) { return x[0] + x[1] + 1; });
  add("sub", {{3, 1}, {3, 4}}, [](const Tensors& x) { return 2 - (x[0] - x[1]); });
  add("mul", {{3, 4}, {1, 4}}, [](const Tensors& x) { return x[0] * x[1] * 3; });
  add("div", {{3, 4}, {3, 1}}, [](const Tensors& x) { return x[0] / x[1] + 1 / x[1]; }, 0.5, 2);
  add("fmod", {{3, 4}, {3, 4}}, [](const Tensors& x) { return x[0].fmod(x[1] * 0.3); }, 0.5, 2);
  add("mod", {{3, 4}}, [](const Tensors& x) { return x[0] % 0.7; }, 0.5, 2);
  add("pow", {{3, 4}, {3, 4}}, [](const Tensors& x) { return x[0].pow(x[1]); }, 0.5, 2);
  add("maximum", {{3, 4}, {4}}, [](const Tensors& x) { return x[0].maximum(x[1]); });
  add("minimum", {{3, 4}, {4}}, [](const Tensors& x) { return x[0].minimum(x[1]); });
  add("where", {{3, 4}, {3, 4}},
      [](const Tensors& x) { return (x[0] < 0.3).where(x[0] * x[1], x[1]); });
  add("masked_fill", {{3, 4}}, [](const Tensors& x) { return x[0].masked_fill(x[0] > 0, 2.0); });
  add("lerp", {{3, 4}, {4}, {3, 1}}, [](const Tensors& x) { return x[0].lerp(x[1], x[2]); });
  add("logaddexp", {{3, 4}, {3, 4}}, [](const Tensors& x) { return x[0].logaddexp(x[1]); });
  add("copysign", {{3, 4}, {3, 4}}, [](const Tensors& x) { return x[0].copysign(x[1].detach()); });
  one("cast", [](const Tensor& x) { return (x * x).cast(DType::F64); });
  // movement
  one("reshape", [](const Tensor& x) { return x.reshape({2, 6}).square(); });
  one("expand", [](const Tensor& x) { return x.unsqueeze(1).expand({3, 5, 4}); });
  one("permute", [](const Tensor& x) { return x.reshape({3, 2, 2}).permute({2, 0, 1}).square(); });
  one("pad", [](const Tensor& x) { return x.pad({{1, 2}, {0, 1}}, 1.5).square(); });
  one("pad_negative", [](const Tensor& x) { return x.pad({{-1, 2}, {0, -1}}).square(); });
  one("pad_reflect",
      [](const Tensor& x) { return x.pad({{2, 1}, {1, 3}}, 0, PadMode::Reflect).square(); });
  one("pad_replicate",
      [](const Tensor& x) { return x.pad({{2, 1}, {1, 3}}, 0, PadMode::Replicate).square(); });
  one("pad_circular",
      [](const Tensor& x) { return x.pad({{2, 1}, {1, 3}}, 0, PadMode::Circular).square(); });
  one("shrink", [](const Tensor& x) { return x.shrink({{1, 3}, {0, 2}}).square(); });
  one("flip", [](const Tensor& x) { return x.flip({0, 1}); });
  one("roll", [](const Tensor& x) { return x.roll({1, -1}, {0, 1}); });
  one("repeat", [](const Tensor& x) { return x.repeat({2, 1, 3}); });
  one("repeat_interleave", [](const Tensor& x) { return x.repeat_interleave(2, 1); });
  one("split", [](const Tensor& x) {
    Tensors parts = x.split(3, 1);
    return parts[0].sum(1) * parts[1].sum(1);
  });
  add("cat", {{2, 3}, {2, 1}}, [](const Tensors& x) { return cat({x[0], x[1], x[0]}, 1); });
  add("stack", {{2, 3}, {2, 3}}, [](const Tensors& x) { return stack({x[0], x[1]}, 1); });
  one("diag", [](const Tensor& x) { return x.flatten().diag(); });
  one("diagonal", [](const Tensor& x) { return x.diagonal(1); });
  one("unfold", [](const Tensor& x) { return x.unfold(1, 2, 1); });
  one("triu", [](const Tensor& x) { return x.triu(1); });
  one("tril", [](const Tensor& x) { return x.tril(); });
  one("rearrange", [](const Tensor& x) { return x.rearrange("a (b c) -> b (a c)", {{"b", 2}}); });
  // indices
  one("getitem_slice", [](const Tensor& x) { return x[{Slice({}, {}, 2), Slice(3, 0, -1)}]; });
  one("getitem_tensor", [](const Tensor& x) { return x[{places()}]; });
  one("getitem_tensors", [](const Tensor& x) { return x[{places(), kNewAxis, places()}]; });
  one("gather", [](const Tensor& x) { return x.gather(1, places()); });
  one("embedding", [](const Tensor& x) { return x.embedding(places()); });
  add("scatter", {{3, 4}, {2, 3}},
      [](const Tensors& x) { return x[0].scatter(1, places(), x[1]); });
  for (auto [name, reduce] : {std::pair("scatter_sum", ScatterReduce::Sum),
                              std::pair("scatter_prod", ScatterReduce::Prod),
                              std::pair("scatter_mean", ScatterReduce::Mean),
                              std::pair("scatter_amax", ScatterReduce::Amax),
                              std::pair("scatter_amin", ScatterReduce::Amin)}) {
    add(name, {{3, 4}, {2, 3}},
        [reduce](const Tensors& x) { return x[0].scatter_reduce(1, places(), x[1], reduce); });
  }
  one("masked_select", [](const Tensor& x) { return x.masked_select(x.detach() > 0, 12, 0.5); });
  one("sort", [](const Tensor& x) { return x.sort(1).first; });
  one("topk", [](const Tensor& x) { return x.topk(2, 0).first; });
  // reductions and scans
  one("sum", [](const Tensor& x) { return x.square().sum(1); });
  one("sum_all", [](const Tensor& x) { return x.square().sum(); });
  one("prod", [](const Tensor& x) { return x.prod(1); });
  one("prod_with_zero", [](const Tensor& x) { return (x * (x > -1).cast(DType::F64)).prod(0); });
  one("max", [](const Tensor& x) { return x.max(0); });
  one("min", [](const Tensor& x) { return x.min({0, 1}); });
  one("mean", [](const Tensor& x) { return x.square().mean(0); });
  one("var", [](const Tensor& x) { return x.var(1); });
  one("std", [](const Tensor& x) { return x.std(1, true, 0); });
  one("logsumexp", [](const Tensor& x) { return x.logsumexp(1); });
  one("softmax", [](const Tensor& x) { return x.softmax(); });
  one("log_softmax", [](const Tensor& x) { return x.log_softmax(0); });
  one("softmin", [](const Tensor& x) { return x.softmin(); });
  one("normalize", [](const Tensor& x) { return x.normalize() + x.normalize(1) + x.normalize(3); });
  one("cumsum", [](const Tensor& x) { return x.cumsum(1); });
  one("cumprod", [](const Tensor& x) { return x.cumprod(1); });
  one("cummax", [](const Tensor& x) { return x.cummax(1).first; });
  one("logcumsumexp", [](const Tensor& x) { return x.logcumsumexp(1); });
  add("cumsum_long", {{1, 300}}, [](const Tensors& x) { return x[0].cumsum(1); });
  // products
  add("matmul", {{3, 4}, {4, 2}}, [](const Tensors& x) { return x[0].matmul(x[1]); });
  add("matmul_batch", {{2, 3, 4}, {2, 4, 2}}, [](const Tensors& x) { return x[0].matmul(x[1]); });
  add("matmul_broadcast", {{2, 1, 3, 4}, {3, 4, 2}},
      [](const Tensors& x) { return x[0].matmul(x[1]); });
  add("matmul_vector", {{4}, {4, 3}},
      [](const Tensors& x) { return x[0].matmul(x[1]).matmul(x[1].T()); });
  add("linear", {{3, 4}, {4, 2}, {2}}, [](const Tensors& x) { return x[0].linear(x[1], x[2]); });
  add("einsum", {{2, 3}, {4, 3, 2}, {2, 2}},
      [](const Tensors& x) { return Tensor::einsum("bn,anm,bm->ba", x); });
  add("conv2d", {{2, 4, 5, 6}, {6, 2, 3, 2}, {6}}, [](const Tensors& x) {
    return x[0].conv2d(
        x[1], x[2], {.groups = 2, .stride = {2, 1}, .dilation = {1, 2}, .padding = {1, 0, 2, 1}});
  });
  add("conv1d", {{2, 3, 8}, {2, 3, 3}},
      [](const Tensors& x) { return x[0].conv2d(x[1], {}, {.stride = 2, .padding = 1}); });
  add("conv3d", {{1, 2, 3, 4, 3}, {2, 2, 2, 2, 2}},
      [](const Tensors& x) { return x[0].conv2d(x[1], {}, {.padding = {1, 0, 0}}); });
  add("conv_transpose2d", {{1, 4, 3, 4}, {4, 2, 3, 2}, {4}}, [](const Tensors& x) {
    return x[0].conv_transpose2d(x[1], x[2],
                                 {.groups = 2,
                                  .stride = {2, 3},
                                  .dilation = {2, 1},
                                  .padding = {1, 0},
                                  .output_padding = {1, 0}});
  });
  add("conv_transpose3d", {{1, 2, 2, 2, 3}, {2, 1, 2, 2, 2}},
      [](const Tensors& x) { return x[0].conv_transpose2d(x[1], {}, {.stride = {1, 2, 1}}); });
  add("max_pool2d", {{1, 2, 4, 5}}, [](const Tensors& x) { return x[0].max_pool2d(); });
  add("max_pool2d_overlap", {{1, 1, 5, 6}}, [](const Tensors& x) {
    return x[0].max_pool2d({3, 2}, {.stride = Ints(1), .dilation = {1, 2}, .padding = 1});
  });
  add("avg_pool2d", {{1, 1, 5, 6}}, [](const Tensors& x) {
    return x[0].avg_pool2d(
        3, {.stride = Ints(2), .padding = 1, .ceil_mode = true, .count_include_pad = false});
  });
  add("interpolate", {{1, 1, 3, 4}}, [](const Tensors& x) { return x[0].interpolate({5, 3}); });
  add("interpolate_nearest", {{1, 1, 3, 4}},
      [](const Tensors& x) { return x[0].interpolate({5, 3}, Interpolation::Nearest); });
  add("newton_schulz", {{3, 4}},
      [](const Tensors& x) { return x[0].newton_schulz(2, {3.4445, -4.775, 2.0315}); });
  // layers and losses
  one("layernorm", [](const Tensor& x) { return x.layernorm(); });
  add("batchnorm", {{2, 3, 2}, {3}, {3}, {3}, {3}},
      [](const Tensors& x) { return x[0].batchnorm(x[1], x[2], x[3], x[4]); });
  add("attention", {{2, 3, 4}, {2, 5, 4}, {2, 5, 2}},
      [](const Tensors& x) { return x[0].scaled_dot_product_attention(x[1], x[2]); });
  add("attention_causal", {{2, 4, 4}, {2, 4, 4}, {2, 4, 2}}, [](const Tensors& x) {
    return x[0].scaled_dot_product_attention(x[1], x[2], {}, {.is_causal = true});
  });
  add("attention_grouped", {{1, 4, 3, 4}, {1, 2, 5, 4}, {1, 2, 5, 2}}, [](const Tensors& x) {
    return x[0].scaled_dot_product_attention(x[1], x[2], {}, {.enable_gqa = true});
  });
  add("sparse_categorical_crossentropy", {{3, 5}}, [](const Tensors& x) {
    return x[0].sparse_categorical_crossentropy(labels(),
                                                {.ignore_index = 0, .label_smoothing = 0.1});
  });
  add("cross_entropy", {{3, 5}}, [](const Tensors& x) { return x[0].cross_entropy(labels()); });
  add("cross_entropy_probabilities", {{3, 5}, {3, 5}},
      [](const Tensors& x) { return x[0].cross_entropy(x[1], {.reduction = Reduction::None}); });
  add(
      "nll_loss", {{3, 5}, {5}}, [](const Tensors& x) { return x[0].nll_loss(labels(), x[1]); },
      0.2, 2);
  add(
      "binary_crossentropy", {{3, 4}, {3, 4}},
      [](const Tensors& x) { return x[0].binary_crossentropy(x[1]); }, 0.1, 0.9);
  add("binary_crossentropy_logits", {{3, 4}, {3, 4}, {4}},
      [](const Tensors& x) { return x[0].binary_crossentropy_logits(x[1], Reduction::Sum, x[2]); });
  return r;
}

class Gradient : public ::testing::TestWithParam<Row> {};

TEST_P(Gradient, AgreesWithDifferences) {
  const Row& row = GetParam();
  int64_t total = 0;
  for (const Dims& shape : row.inputs) total += product(shape);
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> draw(row.low, row.high);
  std::vector<double> point(total);
  for (double& p : point) p = draw(random);

  // All inputs in one line, so that one captured function of one tensor serves every row.
  auto value = [&row](const Tensor& line) {
    Tensors inputs;
    int64_t from = 0;
    for (const Dims& shape : row.inputs) {
      inputs.push_back(line[Slice(from, from + product(shape))].reshape(shape));
      from += product(shape);
    }
    Tensor out = row.call(inputs);
    EXPECT_EQ(out.dtype(), DType::F64);
    // Uneven weights, so that gradients that should differ do.
    Tensor weight = (Tensor::arange(0.0, double(out.numel()), 1.0, DType::F64) * 0.7 + 0.3)
                        .sin()
                        .reshape(out.shape());
    return (out * weight).sum();
  };

  Tensor x(point);
  std::vector<double> gradient = value(x).gradient({x})[0].to_vector<double>();
  Jit evaluate = [&value](const Tensor& line) { return value(line); };
  constexpr double h = 1e-5;
  for (int64_t i = 0; i < total; i += total > 100 ? 37 : 1) {
    std::vector<double> moved = point;
    moved[i] = point[i] + h;
    double above = evaluate(Tensor(moved)).template item<double>();
    moved[i] = point[i] - h;
    double below = evaluate(Tensor(moved)).template item<double>();
    double expected = (above - below) / (2 * h);
    ASSERT_NEAR(gradient[i], expected, 2e-7 + 2e-6 * std::abs(expected))
        << "input " << i << " at " << point[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Gradient, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

// Formulas change their branch at zero, and a branch that has the value need not have the derivatives: those from 0 to 3, of
// each function's series.
TEST(Gradient, HigherOnesAtZero) {
  struct Series {
    const char* name;
    Tensor (Tensor::*method)() const;
    std::vector<double> derivatives;
  };
  const Series all[] = {{"sinh", &Tensor::sinh, {0, 1, 0, 1}},
                        {"cosh", &Tensor::cosh, {1, 0, 1, 0}},
                        {"tanh", &Tensor::tanh, {0, 1, 0, -2}},
                        {"asinh", &Tensor::asinh, {0, 1, 0, -1}},
                        {"atanh", &Tensor::atanh, {0, 1, 0, 2}},
                        {"asin", &Tensor::asin, {0, 1, 0, 1}},
                        {"atan", &Tensor::atan, {0, 1, 0, -2}},
                        {"erf", &Tensor::erf, {0, M_2_SQRTPI, 0, -2 * M_2_SQRTPI}}};
  for (const Series& s : all) {
    // Numbers so small that their square is 0, or lost beside 1, take the branches of zero as well.
    for (double at : {0.0, -0.0, 1e-200, -1e-9}) {
      const Tensor x = Tensor(std::vector<double>{at}).realize();
      Tensors y{(x.*s.method)()};
      for (size_t order = 1; order < s.derivatives.size(); ++order)
        y.push_back(y.back().sum().gradient({x}, {}, true)[0]);
      EXPECT_EQ(std::signbit(y[0].item<double>()), std::signbit(at) && s.derivatives[0] == 0)
          << s.name;
      for (size_t order = 0; order < y.size(); ++order) {
        EXPECT_NEAR(y[order].item<double>(), s.derivatives[order], 1e-4)
            << s.name << " of order " << order << " at " << at;
      }
    }
  }
  // Where there is no slope left, and where there is little.
  const Tensor far(std::vector<double>{INFINITY, -INFINITY});
  for (auto method : {&Tensor::atan, &Tensor::erf, &Tensor::tanh, &Tensor::softsign})
    EXPECT_EQ((far.*method)().sum().gradient({far})[0].to_vector<double>(),
              (std::vector<double>{0, 0}));
  const Tensor x = Tensor(std::vector<float>{1e7F, 1e-10F});
  EXPECT_FLOAT_EQ(x.softsign().sum().gradient({x})[0].to_vector<float>()[0], 1e-14F);
  EXPECT_FLOAT_EQ((-x).elu().to_vector<float>()[1], -1e-10F);
}

// x^n has a slope by x that has one by n, also where that n is 0 and the slope itself is zero.
TEST(Gradient, HigherOnesOfPowersAtWholeExponents) {
  const std::vector<double> bases{2, 0.5, 3, 1, 1.5, 0.7, 4, 0.25},
      exponents{0, 0, 1, 1, 2, 2, 3, -1};
  const Tensor x = Tensor(bases).realize(), n = Tensor(exponents).realize();
  auto by = [](const Tensor& y, const Tensor& target) {
    return y.sum().gradient({target}, {}, true)[0];
  };
  const Tensor y = x.pow(n);
  const std::vector<double> xn = by(by(y, x), n).to_vector<double>(),
                            nx = by(by(y, n), x).to_vector<double>(),
                            xxn = by(by(by(y, x), x), n).to_vector<double>(),
                            xnx = by(by(by(y, x), n), x).to_vector<double>();
  for (size_t i = 0; i < bases.size(); ++i) {
    const double b = bases[i], e = exponents[i], log = std::log(b);
    const double second = std::pow(b, e - 1) * (1 + e * log),
                 third = std::pow(b, e - 2) * (2 * e - 1 + e * (e - 1) * log);
    EXPECT_NEAR(xn[i], second, 1e-9) << b << "^" << e;
    EXPECT_NEAR(nx[i], second, 1e-9) << b << "^" << e;
    EXPECT_NEAR(xxn[i], third, 1e-9) << b << "^" << e;
    EXPECT_NEAR(xnx[i], third, 1e-9) << b << "^" << e;
  }
  // The power 0 of zero, infinity and NaN has no slope.
  const Tensor odd = Tensor(std::vector<double>{0, INFINITY, NAN});
  EXPECT_EQ(by(odd.pow(Tensor::zeros({3}, DType::F64)), odd).to_vector<double>(),
            (std::vector<double>{0, 0, 0}));
}

// A product is linear in each element, also where others are zero: its second derivatives are the
// differences of its gradients.
TEST(GradientOfProducts, HasTheSlopesOfProductsWithZeros) {
  const Tensor index(std::vector<int64_t>{0, 1, 1, 0, 1, 0, 0, 0, 2, 2, 2, 1}, {3, 4});
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> products = {
      {"all", [](const Tensor& x) { return x.prod(); }},
      {"dim 0", [](const Tensor& x) { return x.prod(0); }},
      {"dim 1", [](const Tensor& x) { return x.prod(1); }},
      {"of a transpose", [](const Tensor& x) { return x.T().prod({0, 1}) + x.T().prod(1); }},
      {"running, dim 0", [](const Tensor& x) { return x.cumprod(0); }},
      {"running, dim 1", [](const Tensor& x) { return x.cumprod(1); }},
      {"running over all", [](const Tensor& x) { return x.flatten().cumprod(0); }},
      {"scattered",
       [&index](const Tensor& x) {
         return Tensor::full({3, 4}, 1.5, DType::F64)
             .scatter_reduce(1, index, x, ScatterReduce::Prod);
       }},
      {"squared", [](const Tensor& x) { return x.prod(1).square() + x.square().prod(1); }},
  };
  const std::vector<std::vector<int>> zeros = {{},        {1},       {5, 6}, {0, 3},
                                               {1, 5, 6}, {4, 6, 7}, {3, 7}};
  for (const auto& [name, product_of] : products) {
    auto gradient = [&product_of = product_of](const Tensor& x) {
      Tensor y = product_of(x).flatten();
      Tensor weight = (Tensor::arange(0.0, double(y.numel()), 1.0, DType::F64) * 0.7 + 0.3).sin();
      return (y * weight).sum().gradient({x})[0];
    };
    Jit first = [&gradient](const Tensor& x) { return gradient(x); };
    Jit second = [&gradient](const Tensor& x, const Tensor& pick) {
      return (gradient(x) * pick).sum().gradient({x})[0];
    };
    for (const std::vector<int>& where_zero : zeros) {
      std::vector<double> point{0.7, -1.3, 1.9, 2.3, -0.6, 1.1, -1.7, 0.9, 1.4, 2.1, -0.8, 1.2};
      for (int i : where_zero) point[i] = 0;
      auto gradient_at = [&](size_t moved, double by) {
        std::vector<double> there = point;
        there[moved] += by;
        return first(Tensor(there, {3, 4})).template to_vector<double>();
      };
      for (size_t i = 0; i < point.size(); ++i) {
        std::vector<double> pick(point.size());
        pick[i] = 1;
        const std::vector<double> row =
            second(Tensor(point, {3, 4}), Tensor(pick, {3, 4})).template to_vector<double>();
        for (size_t k = 0; k < point.size(); ++k) {
          constexpr double h = 1e-4;
          const double expected = (gradient_at(k, h)[i] - gradient_at(k, -h)[i]) / (2 * h);
          ASSERT_NEAR(row[k], expected, 1e-6 * (1 + std::abs(expected)))
              << name << ", " << where_zero.size() << " zeros, d2 / d" << i << " d" << k;
        }
      }
    }
  }
}

// A product overflows, or has an element that is no number, beside a zero.
TEST(GradientOfProducts, IsZeroBesideAZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (float large : {3e38f, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Tensor x(std::vector<float>{large, 2e38f, 0, 3});
    const std::vector<float> g = x.prod().gradient({x})[0].to_vector<float>();
    EXPECT_EQ(g[0], 0);
    EXPECT_EQ(g[1], 0);
    EXPECT_FALSE(std::isfinite(g[2]));
    EXPECT_EQ(g[3], 0);
  }
}

TEST(GradientTies, AreSplit) {
  Tensor x{{1.0, 3.0, 3.0}, {2.0, 2.0, 2.0}};
  std::vector<float> g = x.max(1).sum().gradient({x})[0].to_vector<float>();
  std::vector<float> expected{0, 0.5f, 0.5f, 1 / 3.f, 1 / 3.f, 1 / 3.f};
  for (size_t i = 0; i < g.size(); ++i) EXPECT_FLOAT_EQ(g[i], expected[i]) << i;
}

TEST(GradientExtremes, StayFinite) {
  Tensor x(std::vector<float>{-1e4f, -100, -1, 0, 1, 100, 1e4f});
  for (auto method :
       {&Tensor::sigmoid, &Tensor::tanh, &Tensor::silu, &Tensor::logsigmoid, &Tensor::mish}) {
    Tensor y = (x.*method)();
    for (float g : y.sum().gradient({x})[0].to_vector<float>()) EXPECT_TRUE(std::isfinite(g));
    for (float v : y.to_vector<float>()) EXPECT_TRUE(std::isfinite(v));
  }
  for (const Tensor& y : {x.gelu(), x.softplus(), x.elu(), x.softmax(), x.log_softmax()}) {
    for (float g : (y * y).sum().gradient({x})[0].to_vector<float>()) EXPECT_TRUE(std::isfinite(g));
  }
}

TEST(GradientExtremes, AreThoseOfTheFunctionAtZero) {
  Tensor zero(std::vector<double>{0.0});
  auto slope = [&](const Tensor& y) { return y.sum().gradient({zero})[0].item<double>(); };
  EXPECT_DOUBLE_EQ(slope(zero.sigmoid()), 0.25);
  EXPECT_DOUBLE_EQ(slope(zero.tanh()), 1);
  EXPECT_DOUBLE_EQ(slope(zero.softplus()), 0.5);
  EXPECT_DOUBLE_EQ(slope(zero.gelu()), 0.5);
  EXPECT_DOUBLE_EQ(slope(zero.abs()), 0);
  EXPECT_DOUBLE_EQ(slope(zero.relu()), 0);
  EXPECT_NEAR(slope(zero.asinh()), 1, 1e-6);
  EXPECT_NEAR(slope(zero.erf()), 1.1283791670955126, 1e-5);
  EXPECT_NEAR(slope(zero.asin()), 1, 1e-4);
}

}  // namespace
}  // namespace tinyshard::gradient_test
