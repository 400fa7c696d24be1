// Sorts, and scatters to many places, of sizes for which a GPU has kernels of their own: by radix within a block
// and over many, rows that are sorted by where they go. The expected values are computed by the standard library.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::long_lists_test {
namespace {

std::mt19937_64& random_bits() {
  static std::mt19937_64 bits(20261128);
  return bits;
}

template <class T>
std::vector<T> drawn(int64_t n, int64_t below) {
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(
        T(int64_t(random_bits()() % uint64_t(below)) - (std::is_signed_v<T> ? below / 2 : 0)));
  return values;
}

template <class T>
std::vector<int32_t> expected_order(const std::vector<T>& x, int64_t rows, int64_t n, int64_t k) {
  std::vector<int32_t> found;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int32_t i) { return x[size_t(row * n + i)]; });
    found.insert(found.end(), order.begin(), order.begin() + k);
  }
  return found;
}

template <class T>
void expect_sorted(int64_t rows, int64_t n, int64_t k, int64_t below) {
  const std::vector<T> values = drawn<T>(rows * n, below);
  const Tensor x(values, {rows, n});
  const Tensor order = k == n ? x.argsort(1) : x.topk(k, 1, false).second;
  EXPECT_EQ(order.to_vector<int32_t>(), expected_order(values, rows, n, k))
      << name(x.dtype()) << " " << rows << " x " << n << ", " << k << " of values below " << below;
}

TEST(LongLists, RowsOfABlock) {
  expect_sorted<int32_t>(3, 700, 700, int64_t{1} << 32);
  expect_sorted<uint8_t>(2, 1000, 1000, 256);
  expect_sorted<int64_t>(2, 2048, 2048, int64_t{1} << 62);
  expect_sorted<int32_t>(2, 1025, 40, 7);
  expect_sorted<int16_t>(1, 4096, 4096, 1 << 16);
  expect_sorted<float>(2, 513, 513, 100);
}

TEST(LongLists, RowsOfManyBlocks) {
  expect_sorted<int32_t>(1, 5000, 5000, int64_t{1} << 32);
  expect_sorted<uint8_t>(2, 9001, 9001, 256);
  expect_sorted<int16_t>(2, 4097, 300, 7);
  expect_sorted<int64_t>(1, 5000, 5000, int64_t{1} << 62);
  expect_sorted<int64_t>(2, 2049, 10, 3);
}

TEST(LongLists, KeysThatAreAllEqualStayInPlace) {
  const std::vector<int32_t> order =
      Tensor::full({1, 6000}, -1).cast(DType::I32).contiguous().argsort(1).to_vector<int32_t>();
  std::vector<int32_t> places(6000);
  std::iota(places.begin(), places.end(), 0);
  EXPECT_EQ(order, places);
}

struct Scattered {
  int64_t rows_out, rows_in, columns;
};

// Rows of small whole numbers, whose sums have no error in any order.
void expect_reduced(const Scattered& s, ScatterReduce reduce, bool with_self) {
  const auto table = drawn<float>(s.rows_out * s.columns, 64),
             rows = drawn<float>(s.rows_in * s.columns, 64);
  const auto index = drawn<uint32_t>(s.rows_in, s.rows_out);
  std::vector<double> expected(table.begin(), table.end());
  std::vector<bool> named(size_t(s.rows_out));
  for (int64_t r = 0; r < s.rows_in; ++r) {
    const size_t to = index[size_t(r)];
    for (int64_t c = 0; c < s.columns; ++c) {
      double& e = expected[to * size_t(s.columns) + size_t(c)];
      const double x = rows[size_t(r * s.columns + c)];
      if (!named[to] && !with_self)
        e = x;
      else if (reduce == ScatterReduce::Sum)
        e += x;
      else
        e = reduce == ScatterReduce::Amax ? std::max(e, x) : std::min(e, x);
    }
    named[to] = true;
  }
  const Tensor places = Tensor(std::vector<int32_t>(index.begin(), index.end()), {s.rows_in, 1})
                            .expand({s.rows_in, s.columns});
  const Tensor found =
      Tensor(table, {s.rows_out, s.columns})
          .scatter_reduce(0, places, Tensor(rows, {s.rows_in, s.columns}), reduce, with_self);
  EXPECT_EQ(found.to_vector<double>(), expected)
      << s.rows_out << " places, " << s.rows_in << " rows of " << s.columns;
}

TEST(LongLists, RowsGoToManyPlaces) {
  const Scattered narrow{20'000, 9'000, 1};
  expect_reduced(narrow, ScatterReduce::Sum, true);
  expect_reduced(narrow, ScatterReduce::Amax, false);
  expect_reduced(narrow, ScatterReduce::Amin, true);
  expect_reduced({3'000, 30'000, 3}, ScatterReduce::Sum, false);  // each place is named by some
  expect_reduced({9'000, 4'100, 33}, ScatterReduce::Sum, true);
}

TEST(LongLists, TheLastRowThatIsWrittenStays) {
  constexpr int64_t places = 30'000, rows = 20'000, columns = 2;
  const auto index = drawn<uint32_t>(rows, places);
  const auto values = drawn<float>(rows * columns, 1000);
  std::vector<double> expected(size_t(places * columns), -1);
  for (size_t r = 0; r < index.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) expected[index[r] * columns + c] = values[r * columns + c];
  }
  Tensor x = Tensor::full({places, columns}, -1.0).contiguous().realize();
  x[Tensor(std::vector<int32_t>(index.begin(), index.end()))] = Tensor(values, {rows, columns});
  EXPECT_EQ(x.to_vector<double>(), expected);
}

TEST(LongLists, GradientOfATableOfManyRows) {
  constexpr int64_t rows = 50'000, looked_up = 30'000;
  const auto index = drawn<uint32_t>(looked_up, rows);
  Tensor table = Tensor(drawn<float>(rows, 9), {rows, 1}).realize();
  const std::vector<double> values = table.to_vector<double>();
  std::vector<double> expected(rows);
  for (const uint32_t i : index) expected[i] += 2 * values[i];
  const Tensor found =
      table[Tensor(std::vector<int32_t>(index.begin(), index.end()))].square().sum().gradient(
          {table})[0];
  EXPECT_EQ(found.to_vector<double>(), expected);
}

}  // namespace
}  // namespace tinyshard::long_lists_test
