// Decompositions of numbers whose squares vanish or are infinite.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/tensor.h"

namespace tinyshard {
namespace {

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
}  // namespace tinyshard
