// Zeros, infinities and NaN through the functions of one value, on every type of float: what the
// function tends to there. Oracles are <cmath> and the limits themselves; signs of zeros count.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/tensor.h"

namespace tinyshard::special_values_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::F64, DType::F32, DType::F16, DType::BF16};

// Enough neighbours for vectors and their rest.
Tensor many(double x, DType dtype) {
  return Tensor(std::vector<double>(37, x)).cast(dtype).contiguous().realize();
}

void expect_all(const Tensor& y, double expected, const std::string& what) {
  for (double got : y.to_vector<double>()) {
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << what << ": " << got;
    } else {
      ASSERT_EQ(got, expected) << what;
      ASSERT_EQ(std::signbit(got), std::signbit(expected)) << what << ": sign of " << got;
    }
  }
}

using Method = Tensor (Tensor::*)() const;
struct Row {
  const char* name;
  Method method;
};
#define ROW(name) {#name, &Tensor::name}

TEST(Zeros, KeepTheirSignInOddFunctions) {
  const Row rows[] = {ROW(sin),   ROW(tan),   ROW(asin),       ROW(atan),     ROW(sinh),
                      ROW(tanh),  ROW(asinh), ROW(atanh),      ROW(erf),      ROW(sqrt),
                      ROW(trunc), ROW(floor), ROW(ceil),       ROW(round),    ROW(softsign),
                      ROW(silu),  ROW(mish),  ROW(quick_gelu), ROW(hardswish)};
  for (DType dtype : kFloats) {
    for (const Row& row : rows) {
      for (double zero : {0.0, -0.0})
        expect_all((many(zero, dtype).*row.method)(), zero,
                   std::string(row.name) + " of " + std::string(name(dtype)));
    }
    for (bool exact : {false, true}) expect_all(many(-0.0, dtype).gelu(exact), -0.0, "gelu");
  }
}

// The slope of each at zero, which a choice between zero and the formula must not take away.
TEST(Zeros, HaveTheSlopesOfTheFormula) {
  const Row ones[] = {ROW(sin), ROW(asin), ROW(atan), ROW(sinh), ROW(tanh), ROW(asinh), ROW(atanh)};
  for (DType dtype : {DType::F32, DType::F64}) {
    for (const Row& row : ones) {
      Tensor x = many(0, dtype);
      for (double g : (x.*row.method)().sum().gradient({x})[0].to_vector<double>())
        ASSERT_NEAR(g, 1, 1e-6) << row.name;
    }
  }
}

TEST(Nan, StaysInActivations) {
  const Row rows[] = {ROW(relu), ROW(relu6),   ROW(silu),     ROW(mish),     ROW(quick_gelu),
                      ROW(tanh), ROW(sigmoid), ROW(softsign), ROW(hardswish)};
  for (DType dtype : kFloats) {
    for (const Row& row : rows) expect_all((many(kNan, dtype).*row.method)(), kNan, row.name);
    expect_all(many(kNan, dtype).gelu(), kNan, "gelu");
    expect_all(many(kNan, dtype).gelu(true), kNan, "exact gelu");
    expect_all(many(kNan, dtype).elu(), kNan, "elu");
    expect_all(many(kNan, dtype).leaky_relu(), kNan, "leaky_relu");
    expect_all(many(kNan, dtype).hardsigmoid(), kNan, "hardsigmoid");
  }
}

TEST(Relu, IsTheLargerOfXAndZero) {
  for (DType dtype : kFloats) {
    expect_all(many(-3, dtype).relu(), 0, "relu(-3)");
    expect_all(many(-kInf, dtype).relu(), 0, "relu(-inf)");
    expect_all(many(kInf, dtype).relu(), kInf, "relu(inf)");
    expect_all(many(2.5, dtype).relu(), 2.5, "relu(2.5)");
    // Its slope at zero is 0.
    for (double x : {0.0, -0.0, -1.0, 1.0}) {
      Tensor t = many(x, dtype);
      expect_all(t.relu().sum().gradient({t})[0], x > 0, "slope of relu at " + std::to_string(x));
    }
  }
}

// x p(x), where p falls to zero faster than x to -infinity.
TEST(Infinities, AreNothingWhereAGateIsShut) {
  const Row rows[] = {ROW(silu), ROW(swish), ROW(mish), ROW(quick_gelu), ROW(hardswish)};
  for (DType dtype : kFloats) {
    for (double x : {-kInf, dtype == DType::F16 ? -60000.0 : -1e30}) {
      for (const Row& row : rows) expect_all((many(x, dtype).*row.method)(), -0.0, row.name);
      for (bool exact : {false, true}) expect_all(many(x, dtype).gelu(exact), -0.0, "gelu");
      for (bool exact : {false, true}) {
        Tensor t = many(x, dtype);
        for (double g : t.gelu(exact).sum().gradient({t})[0].to_vector<double>()) ASSERT_EQ(g, 0);
      }
      for (const Row& row : rows) {
        Tensor t = many(x, dtype);
        for (double g : (t.*row.method)().sum().gradient({t})[0].to_vector<double>())
          ASSERT_EQ(g, 0) << row.name;
      }
    }
    for (const Row& row : rows) expect_all((many(kInf, dtype).*row.method)(), kInf, row.name);
    for (bool exact : {false, true}) expect_all(many(kInf, dtype).gelu(exact), kInf, "gelu");
  }
}

}  // namespace
}  // namespace tinyshard::special_values_test
