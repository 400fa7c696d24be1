// Decompositions: what a captured step computes anew, what one call computes, of which types and
// sizes, and numbers whose squares vanish or are infinite.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tinyshard/tinyshard.h>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::linalg_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

// Numbers in no order, which are others for another seed.
Tensor matrices(const Dims& shape, int seed, DType dtype = DType::F32) {
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 3 * std::sin(double(i * i + 7 * i) + seed);
  return Tensor(values, shape).cast(dtype);
}

void expect_equal_bits(const Tensor& got, const Tensor& want, const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(a[i], b[i]) << what << ", element " << i;
  }
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.cast(DType::F64) - b.cast(DType::F64)).abs().max().item<double>();
}

std::vector<Dims> shapes() {
  return {{4, 4}, {6, 3}, {3, 6}, {1, 1}, {1, 5}, {5, 1}, {3, 4, 2}, {2, 2, 3, 5}};
}

class Types : public testing::TestWithParam<DType> {};

TEST_P(Types, ACapturedQrIsThatOfEachInput) {
  for (const Dims& shape : shapes()) {
    Jit step = [](const Tensor& x) { return x.qr(); };
    for (int seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(seed);
      const Tensor x = matrices(shape, seed, GetParam()).realize();
      const auto [q, r] = x.qr();
      const auto [q_there, r_there] = step(x);
      expect_equal_bits(q_there, q, "Q of " + x.describe());
      expect_equal_bits(r_there, r, "R of " + x.describe());
    }
  }
}

TEST_P(Types, ACapturedSvdIsThatOfEachInput) {
  for (const Dims& shape : shapes()) {
    for (bool full : {true, false}) {
      Jit step = [&](const Tensor& x) {
        const Tensor::Svd f = x.svd(full);
        return std::tuple(f.u, f.s, f.vt);
      };
      for (int seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(seed);
        const Tensor x = matrices(shape, seed, GetParam()).realize();
        const Tensor::Svd f = x.svd(full);
        const auto [u, s, vt] = step(x);
        expect_equal_bits(u, f.u, "U of " + x.describe());
        expect_equal_bits(s, f.s, "S of " + x.describe());
        expect_equal_bits(vt, f.vt, "V of " + x.describe());
      }
    }
  }
}

// Rounded once, from what is computed of the same numbers in f64.
TEST_P(Types, FactorsAreThoseInF64Rounded) {
  for (const Dims& shape : shapes()) {
    const Tensor x = matrices(shape, 3, GetParam()).realize(), wide = x.cast(DType::F64).realize();
    const auto [q, r] = x.qr();
    const auto [q_wide, r_wide] = wide.qr();
    expect_equal_bits(q, q_wide.cast(GetParam()), "Q of " + x.describe());
    expect_equal_bits(r, r_wide.cast(GetParam()), "R of " + x.describe());
    const Tensor::Svd f = x.svd(), f_wide = wide.svd();
    expect_equal_bits(f.u, f_wide.u.cast(GetParam()), "U of " + x.describe());
    expect_equal_bits(f.s, f_wide.s.cast(GetParam()), "S of " + x.describe());
    expect_equal_bits(f.vt, f_wide.vt.cast(GetParam()), "V of " + x.describe());
  }
}

INSTANTIATE_TEST_SUITE_P(Floats, Types,
                         testing::Values(DType::F16, DType::BF16, DType::F32, DType::F64),
                         [](const auto& info) { return std::string(name(info.param)); });

// Between other ops of a step, of a state that the step changes.
TEST(Linalg, ACapturedStepDecomposesWhatItMakes) {
  Tensor weight = matrices({5, 3}, 1).clone().realize();
  const Tensor by_hand = matrices({5, 3}, 1).clone().realize();
  const auto next = [](const Tensor& w, const Tensor& x) {
    const Tensor::Svd f = (w * 0.5 + x).svd(false);
    const auto [q, r] = f.u.mul(f.s.unsqueeze(-2)).matmul(f.vt).qr();
    return q.matmul(r) + 1;
  };
  Jit step = [&](const Tensor& x) {
    weight.assign(next(weight, x));
    return weight.sum();
  };
  Tensor expected = by_hand;
  for (int seed = 0; seed < 4; ++seed) {
    const Tensor x = matrices({5, 3}, seed + 10).realize();
    step(x);
    const Tensor product = expected * 0.5 + x + 1;
    expected = next(expected, x).realize();
    EXPECT_LT(largest_difference(expected, product), 1e-5);
    EXPECT_LT(largest_difference(weight, expected), 1e-5) << seed;
  }
}

TEST(Linalg, FactorsAreComputedInOneCall) {
  const Tensor x = matrices({3, 4, 2}, 0).realize();
  const auto [q, r] = x.qr();
  const Tensor::Svd f = x.svd(false);
  EXPECT_EQ(summarize(std::vector<Tensor>{q, r}).library_calls, 1);
  EXPECT_EQ(summarize(std::vector<Tensor>{f.u, f.s, f.vt}).library_calls, 1);
  EXPECT_EQ(summarize(f.s).library_calls, 1);
  EXPECT_EQ(summarize(std::vector<Tensor>{q, r, f.s, x.svd().u}).library_calls, 1);
  const std::vector<Tensor> together{q, r, f.u, f.s, f.vt, x.svd().u};
  Jit all = [](const Tensor& y) {
    const auto [first, second] = y.qr();
    const Tensor::Svd g = y.svd(false);
    return std::vector<Tensor>{first, second, g.u, g.s, g.vt, y.svd().u};
  };
  const std::vector<Tensor> captured = all(x);
  for (size_t i = 0; i < together.size(); ++i)
    expect_equal_bits(captured[i], together[i], std::to_string(i));
}

TEST(Linalg, FactorsOfViewsAreThoseOfTheirCopies) {
  const Tensor x = matrices({4, 3, 5}, 2).realize();
  for (const Tensor& view :
       {x.transpose(-2, -1), x.flip({0, 2}), x.unsqueeze(1).expand({4, 2, 3, 5}),
        x[{Slice(1, 3), Slice(), Slice(1, 4)}]}) {
    expect_equal_bits(view.qr().second, view.contiguous().realize().qr().second, view.describe());
    expect_equal_bits(view.svd().s, view.contiguous().realize().svd().s, view.describe());
  }
}

// The matrix has more bytes than a program keeps for its next launch.
TEST(Linalg, ALargeMatrixIsThatOfItsFactors) {
  const Tensor x = matrices({1600, 8}, 5, DType::F64).realize();
  const auto [q, r] = x.qr();
  EXPECT_LT(largest_difference(q.matmul(r), x), 1e-11);
  EXPECT_LT(largest_difference(q.transpose(0, 1).matmul(q), Tensor::eye(1600, {}, DType::F64)),
            1e-12);
}

// Digits that every build has: what is computed is a chain of roundings, and no library's.
TEST(Linalg, HasTheseBits) {
  const Tensor x(std::vector<double>{3, 1, 4, 2, 0, 2}, {3, 2});
  const auto [q, r] = x.qr();
  const Tensor::Svd f = x.svd();
  const std::vector<double> triangle = r.to_vector<double>(), values = f.s.to_vector<double>();
  EXPECT_EQ(triangle, (std::vector<double>{-0x1.4p+2, -0x1.199999999999ap+1, 0,
                                           -0x1.0511de5a8265fp+1, 0, 0}));
  EXPECT_EQ(values, (std::vector<double>{0x1.6209fcccd9174p+2, 0x1.d7f0472836db3p+0}));
}

TEST(Linalg, FactorsOfNothingAreIdentities) {
  for (const Dims& shape : std::vector<Dims>{{3, 0}, {0, 3}, {2, 3, 0}, {0, 3, 2}, {0, 0}}) {
    const Tensor x = Tensor::zeros(shape, DType::F64).contiguous().realize();
    const int64_t m = x.shape(-2), n = x.shape(-1);
    Dims left = shape, right = shape, values = shape;
    left.back() = m, right[right.size() - 2] = n;
    values.pop_back(), values.back() = std::min(m, n);
    const Tensor eye_m = Tensor::eye(m, {}, DType::F64).expand(left),
                 eye_n = Tensor::eye(n, {}, DType::F64).expand(right);
    Jit step = [](const Tensor& y) {
      const auto [q, r] = y.qr();
      const Tensor::Svd f = y.svd();
      return std::vector<Tensor>{q, r, f.u, f.s, f.vt};
    };
    const auto [q, r] = x.qr();
    const Tensor::Svd f = x.svd();
    for (const std::vector<Tensor>& factors :
         {std::vector<Tensor>{q, r, f.u, f.s, f.vt}, step(x)}) {
      expect_equal_bits(factors[0], eye_m, "Q of " + x.describe());
      EXPECT_EQ(factors[1].shape(), shape);
      expect_equal_bits(factors[2], eye_m, "U of " + x.describe());
      EXPECT_EQ(factors[3].shape(), values);
      expect_equal_bits(factors[4], eye_n, "V of " + x.describe());
    }
  }
}

TEST(Linalg, WhatIsNoNumberEnds) {
  for (double odd : {kNan, kInfinity, -kInfinity}) {
    const Tensor x =
        Tensor(std::vector<double>{1, odd, 3, 4, 5, 6, 7, 8, 10, 1, 2, 0}, {4, 3}).realize();
    EXPECT_TRUE(std::isnan(x.qr().second.to_vector<double>()[1])) << odd;
    EXPECT_FALSE(std::isfinite(x.svd().s.sum().item<double>())) << odd;
  }
}

// The sum of the factor, each element of which counts differently.
using Loss = std::function<Tensor(const Tensor& x)>;
Tensor weighed(const Tensor& factor) {
  return (factor * matrices(factor.shape(), 20, factor.dtype())).sum();
}

void expect_gradient_by_differences(const std::string& what, const Dims& shape, const Loss& loss) {
  SCOPED_TRACE(what);
  const Tensor x = matrices(shape, 2, DType::F64).realize();
  const std::vector<double> got = loss(x).gradient({x})[0].to_vector<double>(),
                            at = x.to_vector<double>();
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < at.size(); ++i) {
    auto moved = [&](double by) {
      std::vector<double> values = at;
      values[i] += by;
      return loss(Tensor(values, shape)).item<double>();
    };
    const double want = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    EXPECT_NEAR(got[i], want, 1e-6 * (1 + std::abs(want))) << "element " << i;
  }
}

TEST(Linalg, GradientsAreDifferences) {
  for (const Dims& shape : {Dims{3, 3}, Dims{5, 3}, Dims{3, 5}, Dims{2, 4, 3}, Dims{2, 3, 3}}) {
    const std::string of = Tensor::zeros(shape).describe();
    const int64_t m = shape[shape.size() - 2], n = shape.back();
    auto check = [&](const char* factor, const Loss& loss) {
      expect_gradient_by_differences(factor + (" of " + of), shape, loss);
    };
    check("s", [](const Tensor& x) { return weighed(x.svd().s); });
    check("reduced u", [](const Tensor& x) { return weighed(x.svd(false).u); });
    check("reduced vt", [](const Tensor& x) { return weighed(x.svd(false).vt); });
    check("all three", [](const Tensor& x) {
      const Tensor::Svd f = x.svd(false);
      return weighed(f.u.mul(f.s.exp().unsqueeze(-2)).matmul(f.vt));
    });
    if (m >= n) check("r", [](const Tensor& x) { return weighed(x.qr().second); });
    if (m != n) continue;
    check("q", [](const Tensor& x) { return weighed(x.qr().first); });
    check("q and r", [](const Tensor& x) {
      const auto [q, r] = x.qr();
      return weighed(q.matmul(r.square()));
    });
    check("u and vt", [](const Tensor& x) { return weighed(x.svd().u.matmul(x.svd().vt)); });
  }
}

TEST(Linalg, SecondDerivativesAreDifferences) {
  const auto slope = [](const Tensor& x) {
    return weighed(weighed(x.svd(false).s.square()).gradient({x})[0].sin());
  };
  expect_gradient_by_differences("the slope of s", {3, 2}, slope);
}

TEST(Linalg, GradientsOf16BitFloatsAreThoseInF32Rounded) {
  for (DType type : {DType::F16, DType::BF16}) {
    const Tensor x = matrices({4, 3}, 1, type).realize(), wide = x.cast(DType::F32).realize();
    expect_equal_bits(x.svd().s.sum().gradient({x})[0],
                      wide.svd().s.sum().gradient({wide})[0].cast(type), x.describe());
  }
}

TEST(Linalg, ACapturedStepDescendsAlongTheGradient) {
  const auto loss = [](const Tensor& w) { return (w.svd().s - 1).square().sum(); };
  Tensor weight = matrices({4, 3}, 1).clone().realize();
  const double before = loss(weight).item<double>();
  Jit step = [&] {
    const Tensor value = loss(weight);
    weight.assign(weight - value.gradient({weight})[0] * 0.1);
    return value;
  };
  for (int i = 0; i < 20; ++i) step();
  EXPECT_LT(loss(weight).item<double>(), 0.01 * before);
}

TEST(Linalg, SomeFactorsHaveNoGradient) {
  const auto refused = [](const Dims& shape, const Loss& loss) {
    const Tensor x = matrices(shape, 1).realize();
    return test::message_of<UserError>([&] { (void)loss(x).gradient({x}); });
  };
  using T = const Tensor&;
  EXPECT_NE(refused({3, 2}, [](T x) { return x.qr().first.sum(); })
                .find("Q of qr has a gradient where the matrix is square; detach()"),
            std::string::npos);
  EXPECT_NE(refused({2, 3}, [](T x) { return x.qr().second.sum(); })
                .find("qr has no gradient where a matrix has more columns than rows"),
            std::string::npos);
  for (const Dims& shape : {Dims{2, 3}, Dims{3, 2}}) {
    EXPECT_NE(
        refused(shape, [](T x) { return x.svd().u.sum(); })
            .find("whole u and vt of svd have a gradient where the matrix is square: svd(false)"),
        std::string::npos);
  }
  EXPECT_EQ(refused({3, 2}, [](T x) { return (x * x.detach().svd().u.sum()).sum(); }), "");
}

TEST(Linalg, SizesOfAStepAreRefused) {
  Variable size("rows", 1, 6);
  const Tensor x = matrices({6, 3}, 1).realize();
  Jit step = [&](Variable rows) { return x[{Slice(0, rows)}].qr().second; };
  const std::string text = test::message_of<UserError>([&] { step(size.bind(3)); });
  EXPECT_NE(text.find("qr: a tensor of size rows"), std::string::npos) << text;
}

// A matrix of rank 2 times a power of two.
std::vector<double> scaled(int exponent) {
  std::vector<double> values = {3, 1, -2, 4, 0.5, -7};
  for (double& x : values) x = std::ldexp(x, exponent);
  return values;
}

TEST(Linalg, QrIsThatOfTheSameNumbersTimesAPowerOfTwo) {
  auto [q, r] = Tensor(scaled(0), {3, 2}).qr();
  const auto orthogonal = q.to_vector<double>(), triangle = r.to_vector<double>();
  for (int exponent : {-1000, -600, 600, 1000}) {
    auto [q_there, r_there] = Tensor(scaled(exponent), {3, 2}).qr();
    EXPECT_EQ(q_there.to_vector<double>(), orthogonal) << exponent;
    std::vector<double> back = r_there.to_vector<double>();
    for (double& x : back) x = std::ldexp(x, -exponent);
    EXPECT_EQ(back, triangle) << exponent;
  }
}

TEST(Linalg, RIsATriangleThoughAColumnIsTinyBesideAnother) {
  auto [q, r] = Tensor(std::vector<double>{1e-200, 1, 2e-200, 1, 3e-200, 5}, {3, 2}).qr();
  const auto triangle = r.to_vector<double>();
  for (int below : {2, 4, 5}) EXPECT_EQ(triangle[size_t(below)], 0);
  EXPECT_NEAR(std::abs(triangle[0]) / 1e-200, std::sqrt(14.0), 1e-12);
}

TEST(Linalg, QrOfSubnormalNumbersIsATriangle) {
  auto [q, r] = Tensor(std::vector<double>{-1.5e-323, 1e-323, -6e-323, 4e-323}, {2, 2}).qr();
  EXPECT_EQ(r.to_vector<double>()[2], 0);
}

TEST(Linalg, SingularValuesAreThoseOfTheSameNumbersTimesAPowerOfTwo) {
  const auto values = Tensor(scaled(0), {3, 2}).svd().s.to_vector<double>();
  ASSERT_GT(values.back(), 0);
  for (int exponent : {-1000, -600, 600, 1000}) {
    auto there = Tensor(scaled(exponent), {3, 2}).svd().s.to_vector<double>();
    for (double& x : there) x = std::ldexp(x, -exponent);
    EXPECT_EQ(there, values) << exponent;
  }
}

}  // namespace
}  // namespace tinyshard::linalg_test
