// Sorts along a divided dim give what one device gives, whichever way they go, and those by columns
// (multi/strategies/columnsort.h) send what their head says: on 2 to 8 devices, of rows of any length.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "multi/strategies/columnsort.h"
#include "tests/multi/bytes.h"
#include "tests/multi/one_device.h"

namespace tinyshard {
namespace {

// --- why it sorts --------------------------------------------------------------------------------

// Columns of zeros and ones, known by how many zeros each has, through the steps of columnsort.h;
// whether all zeros come before all ones then.
bool sorts(const std::vector<int64_t>& zeros, int64_t rows, int64_t window) {
  const auto s = int64_t(zeros.size());
  const int64_t block = rows / s;
  std::vector<int64_t> dealt(zeros.size()), blocks(zeros.size());
  for (int64_t d = 0; d < s; ++d) {
    for (int64_t n : zeros) dealt[size_t(d)] += n > d ? (n - d + s - 1) / s : 0;
  }
  for (int64_t d = 0; d < s; ++d) {
    for (int64_t n : dealt) blocks[size_t(d)] += std::clamp<int64_t>(n - d * block, 0, block);
  }
  std::vector<int64_t> done = blocks;
  for (size_t d = 0; d + 1 < zeros.size(); ++d) {
    const int64_t lacking = std::min(window, rows - blocks[d]), behind = std::min(window, blocks[d + 1]);
    done[d] += std::min(lacking, behind), done[d + 1] -= std::min(lacking, behind);
  }
  int64_t left = std::accumulate(zeros.begin(), zeros.end(), int64_t{0});
  for (int64_t n : done) {
    if (n != std::min(left, rows)) return false;
    left -= n;
  }
  return true;
}

// Of all columns of so many rows.
bool sorts_all(int64_t devices, int64_t rows, int64_t window) {
  std::vector<int64_t> zeros(static_cast<size_t>(devices));
  for (;;) {
    if (!sorts(zeros, rows, window)) return false;
    size_t d = 0;
    while (d < zeros.size() && zeros[d] == rows) zeros[d++] = 0;
    if (d == zeros.size()) return true;
    ++zeros[d];
  }
}

TEST(Columnsort, TheLeastRowsAndTheLeastWindowSort) {
  for (int64_t s : {2, 3, 4}) {
    const Columns least = columns_of(s * s * (s - 1), s);
    EXPECT_EQ(least.rows, s * (s - 1));
    EXPECT_TRUE(least.suffice());
    for (int64_t rows : {least.rows, least.rows + s, 2 * least.rows})
      EXPECT_TRUE(sorts_all(s, rows, least.window)) << s << " columns of " << rows;
    EXPECT_FALSE(sorts_all(s, least.rows, least.window - 1)) << s;
    EXPECT_FALSE(columns_of(s * (least.rows - s), s).suffice()) << s;
  }
  EXPECT_FALSE(sorts_all(4, 8, 4));
}

// --- values --------------------------------------------------------------------------------------

// Rows that are hard to sort: ties, runs, zeros of both signs, infinities, NaN.
std::vector<std::pair<std::string, std::vector<double>>> rows_of_length(int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> odd{0.0, -0.0, infinity, -infinity, std::nan(""), 1, -1};
  std::vector<std::pair<std::string, std::vector<double>>> all;
  const auto add = [&](const char* name, const std::function<double(int64_t)>& f) {
    std::vector<double> row;
    for (int64_t i = 0; i < n; ++i) row.push_back(f(i));
    all.emplace_back(name, row);
  };
  add("random", [&](int64_t) { return int(random() % 2000) - 1000; });
  add("ties", [&](int64_t) { return int(random() % 5) - 2; });
  add("odd", [&](int64_t) { return odd[random() % odd.size()]; });
  add("rising", [&](int64_t i) { return double(i % 2048); });
  add("falling", [&](int64_t i) { return double((n - i) % 2048); });
  add("equal", [&](int64_t) { return 1.0; });
  add("nans", [&](int64_t) { return std::nan(""); });
  add("largest", [&](int64_t) { return random() % 2 == 0 ? infinity : -infinity; });
  return all;
}

Tensor tensor_of(const std::vector<double>& row, DType type) {
  Tensor x = Tensor::from(row);
  if (is_float(type)) return x.cast(type).realize();
  // Integers reach the ends of their type where the row has infinities.
  const bool narrow = itemsize(type) == 1;
  std::vector<double> finite;
  for (double v : row) {
    if (std::isnan(v)) v = 3;
    finite.push_back(std::clamp(v, is_signed_int(type) ? -100.0 : 0.0, narrow ? 100.0 : 1e4));
  }
  return Tensor::from(finite).cast(type).realize();
}

class SortAlongShards : public OnDevices<8, testing::TestWithParam<int>> {
 protected:
  Mesh mesh() const {
    const Mesh world = Mesh::world({{"d", -1}});
    std::vector<std::string> names = device_names(GetParam());
    return Mesh::of(names, {{"d", GetParam()}});
  }
  Tensor split(const Tensor& x, int dim = 0) const {
    return x.shard(mesh(), {{"d", Shard(dim)}}).realize();
  }
};

}  // namespace
}  // namespace tinyshard
