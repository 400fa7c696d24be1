// Every recorded case of the Tensor API, its layers and optimizers, one test each (run_case.h), on
// the default device; golden_runner runs them on meshes. Skipped where the data is absent.
#include <iostream>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/nn.h"
#include "tests/golden/expression.h"
#include "tests/golden/run_case.h"

namespace tinyshard::golden {
namespace {

// A wrong name of an option is a value of no enum, and nothing converts to one; a text is no bool
// and no padding. So the compiler refuses the calls of cases that are `Refused`, as it takes those
// with an option that exists.
template <class T, class Option>
concept Gelu = requires(T x, Option o) { x.gelu(o); };
template <class T, class Option>
concept Div = requires(T x, Option o) { x.div(x, o); };
template <class T, class Option>
concept Meshgrid = requires(Option o) { T::meshgrid({}, o); };
template <class T, class Option>
concept Interpolate = requires(T x, Option o) { x.interpolate({2, 2}, o); };
template <class T, class Source>
concept ScatterWith = requires(T x, Source s) { x.scatter(0, x, s, ScatterReduce::Sum); };
template <class T, class Option>
concept Scattered = requires(T x, Option o) { x.scatter_reduce(0, x, x, o); };
template <class T, class Option>
concept Crossentropy = requires(T x, Option o) { x.binary_crossentropy(x, o); };
template <class T, class Option>
concept NllLoss = requires(T x, Option o) { x.nll_loss(x, x, std::nullopt, o); };
template <class Options, class Padding>
concept PaddedBy = requires(Padding p) { Options{.padding = p}; };

using Text = const char*;
static_assert(Gelu<Tensor, bool> && !Gelu<Tensor, Text>);
static_assert(Div<Tensor, Rounding> && !Div<Tensor, Text>);
static_assert(Meshgrid<Tensor, bool> && !Meshgrid<Tensor, Text>);
static_assert(Interpolate<Tensor, Interpolation> && !Interpolate<Tensor, Text>);
static_assert(ScatterWith<Tensor, double> && !ScatterWith<Tensor, Tensor>);
static_assert(Scattered<Tensor, ScatterReduce> && !Scattered<Tensor, Text>);
static_assert(Crossentropy<Tensor, Reduction> && !Crossentropy<Tensor, Text>);
static_assert(NllLoss<Tensor, Reduction> && !NllLoss<Tensor, Text>);
static_assert(PaddedBy<nn::ConvLayerOptions, int> && !PaddedBy<nn::ConvLayerOptions, Text>);

const Recorded& recorded() {
  static const Recorded all{folder()};
  return all;
}

class Golden : public ::testing::TestWithParam<size_t> {};

TEST_P(Golden, Case) {
  const json& description = recorded().cases()[GetParam()];
  const Outcome outcome = run_case(description, recorded(), {});
  EXPECT_TRUE(outcome.passed) << description.at("name") << " " << description.at("args") << ": "
                              << outcome.message;
}

std::string test_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string text = recorded().cases()[info.param].at("name");
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::Range(size_t{0}, recorded().cases().size()),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST(GoldenData, IsThere) {
  if (recorded().cases().empty()) GTEST_SKIP() << "no recorded cases in " << folder();
  std::cout << "golden: " << recorded().cases().size() << " cases\n";
}

// Expressions, operator by operator, against the same calls written in C++.
Tensor evaluated(const std::string& expression, const Tensors& inputs) {
  const Case c("gradient", inputs, {{"expr", expression}});
  return evaluate(c).at(0);
}

TEST(GoldenExpression, IsWhatPythonMeans) {
  const Tensor x{{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}}, y{{2.0, 2.0, 2.0}, {3.0, 3.0, 3.0}};
  const auto same = [&](const std::string& text, const Tensor& expected) {
    const Tensor got = evaluated(text, {x, y});
    EXPECT_EQ(got.shape(), expected.shape()) << text;
    EXPECT_EQ(got.to_vector<double>(), expected.to_vector<double>()) << text;
  };
  same("-x**2 + 3*x", x * 3.0 - x * x);
  same("2 - x / y", Tensor::full({}, 2.0) - x / y);
  same("1 / x", x.reciprocal());
  same("x @ y.T", x.matmul(y.T()));
  same("(x.permute(1,0).flip(0).reshape(2,-1) * 3.0).sum(axis=1, keepdim=True)",
       (x.T().flip(0).reshape({2, 3}) * 3.0).sum(1, true));
  same("x[0, ::2] + x[-1:, None, 1]", x[{0, Slice({}, {}, 2)}] + x[{Slice(-1, {}), kNewAxis, 1}]);
  same("x[..., 1]", x[{kEllipsis, 1}]);
  same("(x > y).where(x, 0)", (x > y).where(x, 0));
  same("Tensor.stack(x, y, dim=1).max(1)", x.maximum(y));
  same("x.sort(descending=True)[0]", x.flip(1));
  same("Tensor.einsum('ij,ij->i', x, y)", (x * y).sum(1));
  same("x // 2 % 2", div(x, 2, Rounding::Floor) % 2);
  same("x.cast(dtypes.float64)", x);
  same("x.linear(y.T, bias=None)", x.matmul(y.T()));
  same("(2 < x) & ~(x >= 5)", (x > 2) & ~(x >= 5));
  EXPECT_THROW(evaluated("x.no_such_call()", {x}), Mismatch);
  EXPECT_THROW(evaluated("x +", {x}), Mismatch);
  EXPECT_THROW(evaluated("x.sum(axes=1)", {x}), Mismatch);
}

// A placement that did not place anything would test nothing.
TEST(GoldenWhere, PutsValuesWhereItSays) {
  const Tensor x = Tensor::arange(24).reshape({4, 6}).to_float();
  const auto placed = [&](const std::vector<int64_t>& axes, const std::string& how) {
    const Tensor there = Where("CPU", axes, how).put(x);
    EXPECT_EQ(there.to_vector<float>(), x.to_vector<float>()) << how;
    return Where("CPU", axes, how).put(x).sharding().to_string();
  };
  EXPECT_EQ(placed({4}, "shard:auto"), "f32[4@axis0:4, 6]");
  EXPECT_EQ(placed({4}, "uneven"), "f32[4, 6@axis0:4]");
  EXPECT_EQ(placed({3}, "shard:0"), "f32[4@axis0:3, 6]");
  EXPECT_EQ(placed({2, 2}, "shard:1"), "f32[4@axis1:2, 6@axis0:2]");
  EXPECT_EQ(placed({3}, "replicate"), "f32[4, 6]");
  EXPECT_EQ(placed({2, 2}, "partial"),
            "f32[4, 6]  Partial(sum) over axis0:2  Partial(sum) over axis1:2");
  EXPECT_EQ(Where("CPU", {3}, "partial").put(x.to_int()).sharding().to_string(),
            "i32[4, 6]  Partial(max) over axis0:3");
  EXPECT_THROW(Where("CPU", {3}, "shard:one"), UserError);
  EXPECT_THROW(Where("CPU", {3}, "halves"), UserError);
}

}  // namespace
}  // namespace tinyshard::golden
