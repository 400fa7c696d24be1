// Long sums: what is added up along any axis is right to a few roundings, however many terms there are;
// running sums never fall where nothing is negative. Oracles are sums in f64 on the host.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/explain.h"
#include "core/tensor/tensor.h"
#include "core/tensor/training.h"

namespace tinyshard::sums_test {
namespace {

// The error of a sum of this many terms, relative to the sum of their sizes: a few roundings of f32.
constexpr double kFew = 2e-6;

// Numbers of one sign, whose sums drift where roundings add up.
std::vector<float> numbers(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  uint32_t state = 12345;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = 0.1f + float(state >> 8) * 0x1p-27f;
  }
  return x;
}

// The sums over dim 0 of x[rows, columns].
std::vector<double> columns_of(const std::vector<float>& x, int64_t columns) {
  std::vector<double> sums(static_cast<size_t>(columns));
  for (size_t i = 0; i < x.size(); ++i) sums[i % sums.size()] += x[i];
  return sums;
}

void expect_near(const Tensor& got, const std::vector<double>& want, double relative,
                 const std::string& what) {
  const auto g = got.to_vector<double>();
  ASSERT_EQ(g.size(), want.size()) << what;
  for (size_t i = 0; i < g.size(); ++i)
    ASSERT_NEAR(g[i], want[i], relative * std::abs(want[i])) << what << " element " << i;
}

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{16384, 64}, {65536, 64}, {262144, 16},
                             {262144, 1}, {100003, 7}, {1 << 20, 3}};

std::string text(const Shape& s) {
  return std::to_string(s.rows) + " x " + std::to_string(s.columns);
}

TEST(LongSums, DownColumns) {
  for (const Shape& s : kShapes) {
    const auto values = numbers(s.rows * s.columns);
    const Tensor x = Tensor(values, {s.rows, s.columns}).realize();
    const auto want = columns_of(values, s.columns);
    expect_near(x.sum(0), want, kFew, "sum of " + text(s));
    expect_near((x * 1).transpose(0, 1).contiguous().sum(1), want, kFew, "rows of " + text(s));
    expect_near(x.transpose(0, 1).sum(1), want, kFew, "sum of transposed " + text(s));
    std::vector<double> mean = want;
    for (double& v : mean) v /= double(s.rows);
    expect_near(x.mean(0), mean, kFew, "mean of " + text(s));
  }
}

TEST(LongSums, OfConstants) {
  for (const Shape& s : kShapes) {
    const Tensor x = Tensor::full({s.rows, s.columns}, 0.1f).clone().realize();
    expect_near(x.mean(0), std::vector<double>(size_t(s.columns), double(0.1f)), kFew, text(s));
    const auto spread = (x + 100).realize().std(0).to_vector<double>();
    for (double v : spread) ASSERT_LT(v, 1e-3) << text(s);
  }
}

TEST(LongSums, OverSeveralAxes) {
  const int64_t n = 32, rows = 96, columns = 96, channels = 8;
  const auto values = numbers(n * rows * columns * channels);
  const Tensor x = Tensor(values, {n, rows, columns, channels}).realize();
  const auto want = columns_of(values, channels);
  expect_near(x.sum({0, 1, 2}), want, kFew, "channels last");
  expect_near(x.permute({3, 0, 1, 2}).sum({1, 2, 3}), want, kFew, "channels first, as a view");
  expect_near(x.permute({2, 3, 1, 0}).sum({0, 2, 3}), want, kFew, "channels in between");
  double all = 0;
  for (double v : want) all += v;
  expect_near(x.sum(), {all}, kFew, "all");
}

TEST(LongSums, OfNarrowTypes) {
  for (DType type : {DType::F16, DType::BF16}) {
    const Tensor x = Tensor::full({131072, 24}, 0.1f).cast(type).contiguous().realize();
    const double one = x.shrink({{0, 1}, {0, 1}}).cast(DType::F64).item<double>();
    expect_near(x.sum(0, false, DType::F32), std::vector<double>(24, one * 131072), kFew, "as f32");
    expect_near(x.mean(0), std::vector<double>(24, one), type == DType::F16 ? 1e-3 : 8e-3, "mean");
  }
}

TEST(LongSums, OfGradients) {
  const int64_t rows = 65536, width = 64;
  const auto values = numbers(rows * width);
  const Tensor x = Tensor(values, {rows, width}).realize(), bias = Tensor::zeros({width}).realize();
  expect_near(((x + bias) * x).sum().gradient({bias})[0], columns_of(values, width), kFew, "bias");
  const Tensor weight = Tensor::ones({width}).realize();
  const Tensor slope = (x.layernorm() * weight * x).sum().gradient({weight})[0];
  const Tensor wide = x.cast(DType::F64);
  const auto want = (wide.layernorm() * wide).sum(0).to_vector<double>();
  const auto sizes = (wide.layernorm() * wide).abs().sum(0).to_vector<double>();
  const auto got = slope.to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 4 * kFew * sizes[i]);
}

// --- scans ---------------------------------------------------------------------------------------

// The number of neighbours along the axis that fall.
int64_t falls(const Tensor& totals, int64_t axis) {
  const int64_t n = totals.shape(axis);
  std::vector<std::pair<int64_t, int64_t>> first, second;
  for (int64_t d = 0; d < totals.ndim(); ++d) {
    first.emplace_back(0, totals.shape(d) - (d == axis));
    second.emplace_back(d == axis, totals.shape(d));
  }
  if (n < 2) return 0;
  return (totals.shrink(second) < totals.shrink(first)).sum().item<int64_t>();
}

TEST(Scans, NeverFallWhereNothingIsNegative) {
  Tensor::manual_seed(5);
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    for (int64_t n : {1, 31, 32, 33, 500, 1024, 1025, 70001, 200000}) {
      const Tensor x = Tensor::rand({n}, type).realize();
      const Tensor few = (x * (Tensor::rand({n}, type) < 0.02)).realize();
      EXPECT_EQ(falls(x.cumsum(0), 0), 0) << name(type) << " of " << n;
      EXPECT_EQ(falls(few.cumsum(0), 0), 0) << name(type) << " of " << n << ", most of them 0";
    }
  }
  for (int64_t axis : {0, 1, 2})
    EXPECT_EQ(falls(Tensor::rand({60, 70, 80}).cumsum(axis), axis), 0) << "axis " << axis;
}

TEST(Scans, AreRight) {
  for (int64_t n : {1, 32, 33, 64, 97, 1024, 1025, 2080, 40000, 1 << 18}) {
    const auto values = numbers(n);
    const Tensor x = Tensor(values).realize();
    std::vector<double> want;
    double sum = 0;
    for (float v : values) want.push_back(sum += v);
    expect_near(x.cumsum(0), want, kFew, "cumsum of " + std::to_string(n));
    const auto slope = x.cumsum(0).sum().gradient({x})[0].to_vector<double>();
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(slope[size_t(i)], double(n - i), 1e-6 * double(n));
  }
}

// Along any dim a scan is a call, with nothing before or behind it; and so is its gradient.
TEST(Scans, AreACallOfACpu) {
  if (Tensor::zeros({1}).device() != "CPU:0") GTEST_SKIP() << "others spell them";
  const Tensor x = Tensor::rand({300, 40, 50}).realize(), w = Tensor::rand({300, 40, 50}).realize();
  for (int64_t axis : {0, 1, 2}) {
    const auto [best, places] = x.cummax(axis);
    const PlanSummary values =
        summarize({x.cumsum(axis), x.cumprod(axis), x.logcumsumexp(axis), best, places});
    EXPECT_EQ(values.library_calls, 5) << "axis " << axis;
    EXPECT_EQ(values.kernels, 0) << "axis " << axis;
    const Tensor slope = (x.cumsum(axis) * w).sum().gradient({x})[0];
    EXPECT_EQ(summarize({slope}).library_calls, 1) << "axis " << axis;
    EXPECT_EQ(summarize({slope}).kernels, 0) << "axis " << axis;
  }
}

TEST(Multinomial, NeverDrawsAWeightOfZero) {
  Tensor::manual_seed(7);
  for (int64_t n : {2, 100, 513, 4000, 128256}) {
    const Tensor w = (Tensor::rand({n}) * (Tensor::rand({n}) < 0.02)).realize();
    const Tensor weights = w.maximum((Tensor::arange(n) == n / 2).cast(DType::F32)).realize();
    const Tensor drawn = weights.multinomial(1 << 18, true);
    EXPECT_EQ((weights.gather(0, drawn) == 0).sum().item<int64_t>(), 0) << n;
    EXPECT_TRUE(((drawn >= 0) & (drawn < n)).all().item<bool>()) << n;
  }
  // A last weight of zero, weights that overflow together, and tiny ones.
  for (float scale : {1.f, 3e38f, 1e-45f, 1e-30f}) {
    const Tensor w = Tensor{1.f, 0.f, 1.f, 1.f, 0.f} * scale;
    for (bool again : {true, false}) {
      const auto places = w.multinomial(again ? 4096 : 3, again).to_vector<int>();
      for (int i : places) ASSERT_TRUE(i == 0 || i == 2 || i == 3) << i << " at " << scale;
    }
  }
}

TEST(Multinomial, TellsWeightsThatAreNone) {
  const float nan = std::nanf(""), inf = INFINITY;
  for (const std::vector<float>& w : std::vector<std::vector<float>>{
           {0, 0, 0}, {2, -1, 1}, {1, nan, 1}, {1, inf, 1}, {-1, -1, -1}}) {
    for (bool again : {true, false}) {
      for (int i : Tensor(w).multinomial(2, again).to_vector<int>()) EXPECT_EQ(i, -1) << w[1];
    }
  }
  // A single weight is positive: a second sample without replacement has none left. Others go on.
  const Tensor rows = Tensor(std::vector<float>{0, 3, 0, 1, 1, 1}, {2, 3});
  const auto places = rows.multinomial(2).to_vector<int>();
  EXPECT_EQ(places[0], 1);
  EXPECT_EQ(places[1], -1);
  EXPECT_GE(places[2], 0);
  EXPECT_GE(places[3], 0);
}

// --- bounds --------------------------------------------------------------------------------------

TEST(Uniform, NeverGivesItsUpperBound) {
  Tensor::manual_seed(3);
  struct Bounds {
    double low, high;
  };
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    for (auto [low, high] : {Bounds{1, 2}, {100, 101}, {-1, 0}, {-3, -1}, {0, 0.1}, {1000, 1001}}) {
      const Tensor x = Tensor::uniform({1 << 19}, low, high, type);
      const double bound = Tensor{high}.cast(type).cast(DType::F64).item<double>();
      EXPECT_LT(x.max().cast(DType::F64).item<double>(), std::max(bound, high))
          << name(type) << high;
      EXPECT_GE(x.min().cast(DType::F64).item<double>(),
                Tensor{low}.cast(type).cast(DType::F64).item<double>())
          << name(type);
    }
  }
}

TEST(Linspace, HasBothEnds) {
  for (DType type : {DType::F32, DType::F64}) {
    for (int64_t n : {2, 3, 7, 49, 50, 1000}) {
      for (auto [a, b] : {std::pair{1.0, 0.0}, {0.0, 1.0}, {-0.1, 0.3}, {5.0, 5.0}}) {
        const auto x = Tensor::linspace(a, b, n, type).to_vector<double>();
        const auto as = [&](double v) { return type == DType::F32 ? double(float(v)) : v; };
        EXPECT_EQ(x.front(), as(a)) << n;
        EXPECT_EQ(x.back(), as(b)) << n;
      }
    }
  }
}

TEST(OverNothing, TheLargestIsTheLeast) {
  const Tensor x = Tensor::zeros({2, 0});
  EXPECT_EQ(x.max(1).to_vector<float>(), std::vector<float>(2, -INFINITY));
  EXPECT_EQ(x.min(1).to_vector<float>(), std::vector<float>(2, INFINITY));
  EXPECT_EQ(x.cast(DType::I32).max(1).to_vector<int>(), std::vector<int>(2, INT32_MIN));
  EXPECT_EQ(x.cast(DType::U8).min(1).to_vector<int>(), std::vector<int>(2, 255));
  EXPECT_EQ(x.cast(DType::Bool).max(1).to_vector<bool>(), std::vector<bool>(2, false));
  EXPECT_EQ(x.max(0).shape(), Dims{0});
}

// d3 / dx dy dz of x y z w.
TEST(Product, HasThirdDerivativesAtThreeZeros) {
  for (DType type : {DType::F32, DType::F64}) {
    for (const auto& values : std::vector<std::vector<double>>{
             {0, 0, 0, 2}, {0, 2, 0, 0}, {0, 0, 3, 2}, {0, 1, 3, 2}, {4, 1, 3, 2}, {0, 0, 0, 0}}) {
      const Tensor x = Tensor(values).cast(type).realize();
      Tensor slope = x.prod();
      for (int64_t i : {0, 1, 2}) {
        slope = slope.gradient({x})[0].shrink({{i, i + 1}}).sum();
      }
      EXPECT_EQ(slope.item<double>(), values[3]) << values[0] << values[1] << values[2];
    }
  }
}

TEST(Interpolate, RoundsImages) {
  const Tensor x = Tensor(std::vector<int>{0, 11, 100, 3}, {1, 1, 4});
  EXPECT_EQ(x.cast(DType::U8).interpolate({7}).to_vector<double>(),
            x.cast(DType::F32).interpolate({7}).round().to_vector<double>());
  EXPECT_EQ(
      (Tensor(std::vector<int>{5, 6}, {1, 1, 2}).cast(DType::U8).interpolate({1}).item<int>()), 6);
}

}  // namespace
}  // namespace tinyshard::sums_test
