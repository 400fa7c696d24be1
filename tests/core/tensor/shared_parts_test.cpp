// Values of which the next one reads the last one twice: a graph of sixty such steps has some
// hundred nodes and 2^60 ways through it. Whatever asks about a graph asks each node a few times at
// most, or these tests would not end. Each value is compared with that of the same steps taken one
// by one, where nothing is shared.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard::shared_parts_test {
namespace {

using testing::ElementsAreArray;

constexpr int kLevels = 60;

// Compares what `use` makes of x after that many steps, as one graph and step by step.
void expect_same(const Tensor& start, const std::function<Tensor(const Tensor&)>& step,
                 const std::function<Tensor(const Tensor&)>& use) {
  Tensor at_once = start, one_by_one = start.clone().realize();
  for (int i = 0; i < kLevels; ++i) {
    at_once = step(at_once);
    one_by_one = step(one_by_one).contiguous().realize();
  }
  EXPECT_THAT(use(at_once).to_vector<double>(),
              ElementsAreArray(use(one_by_one).to_vector<double>()));
}

Tensor numbers(int64_t n) {
  return ((Tensor::arange(n) * 7 + 3) % 11).cast(DType::F32).contiguous().realize();
}
Tensor stored(int32_t n) { return Tensor(std::vector<int32_t>{n}, {}).realize(); }
Tensor same(const Tensor& x) { return x; }

// A mask that ends at such a number; kernels would end their loops there.
TEST(SharedParts, OfANumberThatAMaskEndsAt) {
  expect_same(
      stored(3), [](const Tensor& n) { return (n ^ (n >> 1)) % 9; },
      [](const Tensor& n) { return (Tensor::arange(8) < n).where(numbers(8), 0); });
}

TEST(SharedParts, OfMasks) {
  const Tensor x = numbers(8), end = stored(6);
  expect_same(
      Tensor::arange(8) < end, [&](const Tensor& m) { return (m & (x > 0.5F)) & (m & (x < 11.F)); },
      [&](const Tensor& m) { return m.where(x, 0); });
  expect_same(
      x > 5.F, [](const Tensor& m) { return (m & m.flip(0)) | (m ^ m.roll(1, 0)); },
      [&](const Tensor& m) { return m.where(x, 0).sum(); });
}

TEST(SharedParts, OfProductsThatAreSummed) {
  const Tensor end = stored(6);
  const Tensor few = (Tensor::arange(300'000) < end).where(Tensor::ones({300'000}), 0.F);
  expect_same(few, [](const Tensor& x) { return x * x; }, [](const Tensor& x) { return x.sum(); });
}

// Each device has a term of a pending sum: it stays one if what it is multiplied with is finite.
TEST(SharedParts, OfAFactorOfAPendingSum) {
  TINYSHARD_NEED_DEVICES(2);
  const Tensor sum = numbers(32).reshape({2, 4, 4}).shard(device_names(2), 0).sum(Axes(0));
  const Tensor choice = numbers(16).reshape({4, 4}) > 5.F;
  expect_same((numbers(16).reshape({4, 4}) > 3.F).cast(DType::F32),
              [&](const Tensor& w) { return choice.where(w, w.T()); },
              [&](const Tensor& w) { return sum * w; });
}

// Quotients and remainders of one index, added up and divided again.
TEST(SharedParts, OfIndices) {
  expect_same(
      numbers(15), [](const Tensor& x) { return x.reshape({3, 5}).T().reshape({15}); }, same);
  const Tensor x = numbers(100);
  expect_same(
      Tensor::arange(15), [](const Tensor& i) { return (i / 3 + i % 3 + i) % 15; },
      [&](const Tensor& i) { return x.at({i.cast(DType::I32)}); });
  expect_same(
      Tensor::arange(15), [](const Tensor& i) { return (i * i + i) % 15; },
      [&](const Tensor& i) { return x.at({i.cast(DType::I32)}); });
}

// No parts are shared here: each view would be looked through on the stack.
TEST(SharedParts, OfViewsOfViewsThereMayBeAnyNumber) {
  constexpr int64_t kViews = 30'000;
  Tensor x = Tensor::arange(15).contiguous().realize();
  for (int64_t i = 0; i < kViews; ++i) x = x.reshape({3, 5}).T().reshape({15});
  std::vector<int64_t> expected;
  int64_t power = 1;  // each step brings what is at 5 i mod 14 to i
  for (int64_t i = 0; i < kViews; ++i) power = power * 5 % 14;
  for (int64_t i = 0; i < 15; ++i) expected.push_back(i == 14 ? 14 : i * power % 14);
  EXPECT_THAT(x.to_vector<int64_t>(), ElementsAreArray(expected));
}

TEST(SharedParts, OfGradients) {
  const Tensor x = numbers(8);
  Tensor y = x;
  for (int i = 0; i < kLevels; ++i) y = (y > 5.F).where(y - 1.F, y * 0.5F + y * 0.5F);
  EXPECT_THAT(y.sum().gradient({x})[0].to_vector<double>(), testing::Each(1));
}

}  // namespace
}  // namespace tinyshard::shared_parts_test
