// Functions against the C library's, in relative error: close to zero, far away and in between.
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/tensor.h"

namespace tinyshard::accuracy_test {
namespace {

struct Row {
  const char* name;
  Tensor (Tensor::*method)() const;
  double (*exact)(double);
  double low, high;                // of |x|, drawn evenly in the logarithm
  bool negative = true;            // both signs
  double f32 = 1e-6, f64 = 2e-14;  // relative error allowed
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softsign(double x) { return x / (1 + std::abs(x)); }
double logsigmoid(double x) {
  return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
}
double softplus(double x) { return -logsigmoid(-x); }
double silu(double x) { return x * sigmoid(x); }
double mish(double x) { return x * std::tanh(softplus(x)); }
double rsqrt(double x) { return 1 / std::sqrt(x); }
double quick_gelu(double x) { return x * sigmoid(1.702 * x); }
Tensor gelu_tanh(const Tensor& x) { return x.gelu(); }

std::vector<Row> rows() {
  return {
      {"exp", &Tensor::exp, std::exp, 1e-6, 10, true, 2e-6},
      {"exp_far", &Tensor::exp, std::exp, 10, 80, true, 1e-5, 2e-14},
      {"exp2", &Tensor::exp2, std::exp2, 1e-6, 100},
      {"log", &Tensor::log, std::log, 1e-30, 1e30, false},
      {"log_near_one", &Tensor::log, std::log, 0.5, 2, false, 2e-6, 1e-12},
      {"log2", &Tensor::log2, std::log2, 1e-30, 1e30, false},
      {"log10", &Tensor::log10, std::log10, 1e-30, 1e30, false},
      {"sqrt", &Tensor::sqrt, std::sqrt, 1e-30, 1e30, false},
      {"rsqrt", &Tensor::rsqrt, rsqrt, 1e-30, 1e30, false},
      {"sin", &Tensor::sin, std::sin, 1e-6, 3},
      {"tan", &Tensor::tan, std::tan, 1e-6, 1.5, true, 5e-6, 1e-13},
      {"asin", &Tensor::asin, std::asin, 1e-6, 1},
      {"atan", &Tensor::atan, std::atan, 1e-6, 1e6},
      {"sinh", &Tensor::sinh, std::sinh, 1e-6, 20, true, 5e-6},
      {"cosh", &Tensor::cosh, std::cosh, 1e-6, 20, true, 5e-6},
      {"cosh_far", &Tensor::cosh, std::cosh, 20, 89.4, true, 1e-5},
      {"tanh", &Tensor::tanh, std::tanh, 1e-6, 20},
      {"asinh", &Tensor::asinh, std::asinh, 1e-6, 1e25},
      {"acosh", &Tensor::acosh, std::acosh, 1.001, 1e25, false},
      {"atanh", &Tensor::atanh, std::atanh, 1e-6, 0.99},
      {"erf", &Tensor::erf, std::erf, 1e-6, 5},
      {"sigmoid", &Tensor::sigmoid, sigmoid, 1e-6, 30, true, 5e-6},
      {"logsigmoid", &Tensor::logsigmoid, logsigmoid, 1e-6, 30, true, 5e-6},
      {"silu", &Tensor::silu, silu, 1e-6, 30, true, 5e-6},
      {"mish", &Tensor::mish, mish, 1e-6, 15, true, 5e-6},
      {"softsign", &Tensor::softsign, softsign, 1e-6, 1e6},
      {"quick_gelu", &Tensor::quick_gelu, quick_gelu, 1e-6, 10, true, 5e-6},
  };
}

class Accuracy : public ::testing::TestWithParam<Row> {
 protected:
  // Inputs as the type holds them.
  static std::vector<double> inputs(const Row& row, DType dtype) {
    std::vector<double> x;
    constexpr int kPoints = 400;
    for (int i = 0; i <= kPoints; ++i) {
      double magnitude = row.low * std::pow(row.high / row.low, double(i) / kPoints);
      x.push_back(magnitude);
      if (row.negative) x.push_back(-magnitude);
    }
    return Tensor(x).cast(dtype).to_vector<double>();
  }
};

TEST_P(Accuracy, InF32AndF64) {
  const Row& row = GetParam();
  for (DType dtype : {DType::F32, DType::F64}) {
    std::vector<double> x = inputs(row, dtype);
    std::vector<double> got = (Tensor(x).cast(dtype).*row.method)().to_vector<double>();
    double allowed = dtype == DType::F32 ? row.f32 : row.f64, worst = 0, at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double exact = row.exact(x[i]);
      double error = got[i] == exact ? 0 : std::abs(got[i] - exact) / std::abs(exact);
      if (!(error <= worst)) worst = error, at = x[i];
    }
    EXPECT_LE(worst, allowed) << name(dtype) << " at " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, Accuracy, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

// Checks at every power of two whether a function has a result, and whether that is too large for
// the type.
TEST_P(Accuracy, KindOfResultEverywhere) {
  const Row& row = GetParam();
  for (DType dtype : {DType::F32, DType::F64}) {
    int low = dtype == DType::F32 ? -149 : -1074, high = dtype == DType::F32 ? 127 : 1023;
    double largest = dtype == DType::F32 ? std::numeric_limits<float>::max()
                                         : std::numeric_limits<double>::max();
    std::vector<double> x;
    for (int exponent = low; exponent <= high; ++exponent) {
      for (double mantissa : {1.0, -1.0, 1.39, -1.39}) x.push_back(std::ldexp(mantissa, exponent));
    }
    x = Tensor(x).cast(dtype).to_vector<double>();
    std::vector<double> got = (Tensor(x).cast(dtype).*row.method)().to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i) {
      double exact = row.exact(x[i]);
      if (std::abs(exact) > largest) exact = std::copysign(INFINITY, exact);
      EXPECT_EQ(std::isnan(got[i]), std::isnan(exact))
          << name(dtype) << " at " << x[i] << ": " << got[i] << ", not " << exact;
      if (std::isinf(exact) || std::isinf(got[i])) {
        EXPECT_EQ(got[i], exact) << name(dtype) << " at " << x[i];
      }
    }
  }
}

TEST(AccuracyOf, Limits) {
  constexpr double inf = INFINITY;
  Tensor x(std::vector<double>{-inf, -1, 0, 1, inf, NAN});
  auto expect = [&](const Tensor& y, std::vector<double> expected) {
    std::vector<double> got = y.to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_DOUBLE_EQ(got[i], expected[i]) << i;
      }
    }
  };
  double e = std::numbers::e, pi = std::numbers::pi;
  expect(x.exp(), {0, 1 / e, 1, e, inf, NAN});
  expect(x.log(), {NAN, NAN, -inf, 0, inf, NAN});
  expect(x.sqrt(), {NAN, NAN, 0, 1, inf, NAN});
  expect(x.tanh(), {-1, std::tanh(-1.0), 0, std::tanh(1.0), 1, NAN});
  expect(x.atanh(), {NAN, -inf, 0, inf, NAN, NAN});
  expect(x.asin(), {NAN, -pi / 2, 0, pi / 2, NAN, NAN});
  expect(x.atan(), {-pi / 2, -pi / 4, 0, pi / 4, pi / 2, NAN});
  expect(x.sinh(), {-inf, std::sinh(-1.0), 0, std::sinh(1.0), inf, NAN});
  expect(x.cosh(), {inf, std::cosh(1.0), 1, std::cosh(1.0), inf, NAN});
  expect(x.acosh(), {NAN, NAN, NAN, 0, inf, NAN});
  expect(x.asinh(), {-inf, std::asinh(-1.0), 0, std::asinh(1.0), inf, NAN});
  expect(x.erf(), {-1, std::erf(-1.0), 0, std::erf(1.0), 1, NAN});
  expect(x.sigmoid(), {0, sigmoid(-1), 0.5, sigmoid(1), 1, NAN});
  expect(x.softplus(), {0, softplus(-1), std::numbers::ln2, softplus(1), inf, NAN});
}

TEST(AccuracyOf, RoundingOfEveryKind) {
  std::vector<double> values{-2.5, -1.5, -0.5, -0.3, 0, 0.3, 0.5, 1.5, 2.5, 8388609, 1e300};
  Tensor x(values);
  std::vector<double> floor = x.floor().to_vector<double>(), ceil = x.ceil().to_vector<double>(),
                      trunc = x.trunc().to_vector<double>(), round = x.round().to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(floor[i], std::floor(values[i]));
    EXPECT_EQ(ceil[i], std::ceil(values[i]));
    EXPECT_EQ(trunc[i], std::trunc(values[i]));
    EXPECT_EQ(round[i], std::nearbyint(values[i])) << values[i];
  }
  EXPECT_EQ(Tensor(std::vector<float>{8388609}).round().item<float>(), 8388609);
}

TEST(AccuracyOf, GeluInItsTwoForms) {
  std::vector<double> values;
  for (int i = -60; i <= 60; ++i) values.push_back(i / 10.0);
  std::vector<double> by_tanh = gelu_tanh(Tensor(values)).to_vector<double>(),
                      by_erf = Tensor(values).gelu(true).to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    double x = values[i], u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    EXPECT_NEAR(by_tanh[i], 0.5 * x * (1 + std::tanh(u)), 1e-14);
    EXPECT_NEAR(by_erf[i], 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)), 1e-14);
  }
}

// However many numbers there are, and whether their number has divisors or not.
TEST(Accuracy, OfSumsOfMillions) {
  for (const int64_t n : {int64_t{1000003}, int64_t{10000019}, int64_t{1} << 25}) {
    const Tensor x = Tensor::full({n}, 1000.25f).contiguous();
    EXPECT_NEAR(x.mean().item<double>(), 1000.25, 1e-3) << n;
    EXPECT_NEAR(x.var().item<double>(), 0, 1e-5) << n;
    EXPECT_NEAR((Tensor::arange(n).mod(2).cast(DType::F32) + 1000).mean().item<double>(), 1000.5,
                1e-3)
        << n;
  }
  const Tensor rows = Tensor::full({40, 400009}, 0.1f).contiguous();
  for (const double sum : rows.sum(1).to_vector<double>()) EXPECT_NEAR(sum, 40000.9, 0.05);
  // Down a column 4096 elements are added one after the other, here with one rounding error each.
  for (const double sum : rows.T().contiguous().sum(0).to_vector<double>())
    EXPECT_NEAR(sum, 40000.9, 40000.9 * 4096 * 0x1p-24);
}

// Newton-Schulz divides by a norm. Here the squares in that norm are too large for the type of the
// numbers.
TEST(Accuracy, OfNewtonSchulzOfLargeNumbers) {
  const Tensor x = ((Tensor::arange(12) * 7 + 3) % 11 * 20 - 100).reshape({3, 4});
  const std::vector<double> expected =
      (x.cast(DType::F64) * 0.01).newton_schulz(3, {1.5, -0.5}).to_vector<double>();
  auto expect = [&](const Tensor& large, double tolerance) {
    const Tensor y = large.newton_schulz(3, {1.5, -0.5});
    EXPECT_TRUE(is_float(y.dtype())) << y.describe();
    const std::vector<double> found = y.to_vector<double>();
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], tolerance) << large.describe() << " " << i;
  };
  expect(x.cast(DType::F16) * 100, 4e-3);
  expect(x.cast(DType::BF16) * 100, 3e-2);
  expect(x.cast(DType::I8), 1e-6);
}

}  // namespace
}  // namespace tinyshard::accuracy_test
