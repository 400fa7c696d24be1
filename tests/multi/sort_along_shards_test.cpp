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

namespace tinyshard::sort_along_shards_test {
namespace {

// --- why it sorts --------------------------------------------------------------------------------

// Columns of zeros and ones, known by how many zeros each has, through the steps of columnsort.h;
// whether all zeros come before all ones then.
bool sorts(const std::vector<int64_t>& zeros, const Columns& columns) {
  const auto s = int64_t(zeros.size());
  const int64_t rows = columns.rows, block = rows / s;
  std::vector<int64_t> dealt(zeros.size()), blocks(zeros.size());
  for (int64_t d = 0; d < s; ++d) {
    for (int64_t n : zeros) dealt[size_t(d)] += n > d ? (n - d + s - 1) / s : 0;
  }
  for (int64_t d = 0; d < s; ++d) {
    for (int64_t n : dealt) blocks[size_t(d)] += std::clamp<int64_t>(n - d * block, 0, block);
  }
  std::vector<int64_t> done = blocks;
  for (size_t d = 0; d + 1 < zeros.size(); ++d) {
    const int64_t ones = rows - blocks[d], behind = blocks[d + 1];
    const int64_t cross = std::min({ones, behind, columns.window});
    done[d] += cross, done[d + 1] -= cross;
    // The mixed part is then sorted alone.
    if (cross > 0 && std::max(ones, behind) > columns.mixed) return false;
  }
  int64_t left = std::accumulate(zeros.begin(), zeros.end(), int64_t{0});
  for (int64_t n : done) {
    if (n != std::min(left, rows)) return false;
    left -= n;
  }
  return true;
}

// Returns whether all columns of so many rows are sorted.
bool sorts_all(const Columns& columns) {
  std::vector<int64_t> zeros(static_cast<size_t>(columns.devices));
  for (;;) {
    if (!sorts(zeros, columns)) return false;
    size_t d = 0;
    while (d < zeros.size() && zeros[d] == columns.rows) zeros[d++] = 0;
    if (d == zeros.size()) return true;
    ++zeros[d];
  }
}

TEST(Columnsort, BoundsAreEnoughAndTight) {
  for (int64_t s : {2, 3, 4}) {
    const Columns least = columns_of(s * s * (s - 1), s);
    EXPECT_EQ(least.rows, s * (s - 1));
    EXPECT_TRUE(least.suffice());
    EXPECT_FALSE(columns_of(s * (least.rows - s), s).suffice()) << s;
    for (int64_t rows : {least.rows, least.rows + s, 2 * least.rows})
      EXPECT_TRUE(sorts_all(columns_of(s * rows, s))) << s << " columns of " << rows;
    Columns columns = columns_of(2 * s * least.rows, s);
    --columns.window;
    EXPECT_FALSE(sorts_all(columns)) << s;
    ++columns.window, --columns.mixed;
    EXPECT_FALSE(sorts_all(columns)) << s;
  }
  EXPECT_FALSE(sorts_all(columns_of(4 * 8, 4)));
}

// --- values --------------------------------------------------------------------------------------

using Row = std::vector<double>;

bool comes_before(double a, double b) { return a < b || (!std::isnan(a) && std::isnan(b)); }

// The stable order.
std::vector<int64_t> order_of_row(const Row& row, bool descending) {
  std::vector<int64_t> order(row.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, [&](int64_t i, int64_t j) {
    const double a = row[size_t(i)], b = row[size_t(j)];
    return descending ? comes_before(b, a) : comes_before(a, b);
  });
  return order;
}

// Rows that are hard to sort: ties, runs, zeros of both signs, infinities, NaN.
std::vector<Row> hard_rows(int64_t n, DType type) {
  std::mt19937 random(static_cast<uint32_t>(n));
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Row odd{0.0, -0.0, infinity, -infinity, nan, 1, -1};
  const std::function<double(int64_t)> makers[] = {
      [&](int64_t) { return int(random() % 250) - 125; },
      [&](int64_t) { return int(random() % 5) - 2; },
      [&](int64_t) { return odd[random() % odd.size()]; },
      [&](int64_t i) { return double(i % 128); },
      [&](int64_t i) { return double((n - 1 - i) % 128); },
      [&](int64_t) { return 1.0; },
      [&](int64_t i) { return i % 3 == 0 ? 0.0 : -0.0; },
      [&](int64_t) { return nan; },
      [&](int64_t) { return random() % 2 == 0 ? infinity : -infinity; },
      [&](int64_t i) { return i == n / 2 ? -infinity : nan; },
  };
  std::vector<Row> rows;
  for (const auto& make : makers) {
    Row& row = rows.emplace_back();
    for (int64_t i = 0; i < n; ++i) {
      double v = make(i);
      // Integers reach the ends of their type where floats are infinite.
      if (type == DType::Bool) v = v > 0 ? 1 : 0;
      if (is_int(type) && std::isnan(v)) v = 3;
      if (is_int(type) && std::isinf(v)) {
        const double top = std::exp2(std::min<double>(8.0 * double(itemsize(type)), 54) - 1);
        v = v > 0 ? top - 1 : -top;
      }
      if (is_unsigned_int(type)) v = std::abs(v) == std::exp2(7) ? 127 : std::abs(v);
      row.push_back(v + 0.0 * (is_int(type) ? 1 : 0));
    }
  }
  return rows;
}

// On a mesh with an axis of one device that takes the first dim, so that rows cannot be divided by it
// instead.
template <int kDevices>
class AlongShards : public OnDevices<kDevices, testing::TestWithParam<int>> {
 protected:
  static Tensor split(const Tensor& x, int64_t devices) {
    const Mesh mesh({{"rows", 1}, {"d", devices}});
    return x.shard(mesh, {{"rows", Shard(0)}, {"d", Shard(1)}}).realize();
  }
  static bool is_by_columns(const Tensor& y) { return y.sharding().placements[1] == Shard(1); }
};
class SortAlongShards : public AlongShards<8> {
 protected:
  static Tensor split(const Tensor& x) { return AlongShards<8>::split(x, GetParam()); }
};

// Each row so many times that links take long to gather them.
Tensor repeated(const std::vector<Row>& rows, DType type, int64_t elements) {
  const auto n = int64_t(rows[0].size());
  Row all;
  for (const Row& row : rows) all.insert(all.end(), row.begin(), row.end());
  const int64_t times = 1 + elements / std::max<int64_t>(1, int64_t(all.size()));
  Row many;
  for (int64_t i = 0; i < times; ++i) many.insert(many.end(), all.begin(), all.end());
  return Tensor(many, {times * int64_t(rows.size()), n}).cast(type).realize();
}

void expect_rows(const Tensor& got, const std::vector<Row>& want, bool signs) {
  const Row values = got.to_vector<double>();
  const size_t n = want[0].size();
  for (size_t i = 0; i < values.size(); ++i) {
    const double a = values[i], b = want[i / n % want.size()][i % n];
    ASSERT_TRUE((a == b && (!signs || std::signbit(a) == std::signbit(b))) ||
                (std::isnan(a) && std::isnan(b)))
        << "row " << i / n << " of " << n << " at " << i % n << ": " << a << " is not " << b;
  }
}

// Compares with std::stable_sort of the rows: values alone, the order alone and both.
void check_sorts(const Tensor& x, const std::vector<Row>& rows, bool descending) {
  std::vector<Row> values, orders;
  for (const Row& row : rows) {
    Row &sorted_row = values.emplace_back(), &order = orders.emplace_back();
    for (int64_t i : order_of_row(row, descending)) {
      sorted_row.push_back(row[size_t(i)]);
      order.push_back(double(i));
    }
  }
  expect_rows(x.sort(1, descending).first, values, false);
  expect_rows(x.argsort(1, descending), orders, true);
  auto [both, places] = x.sort(1, descending);
  Tensor::realize({both, places});
  expect_rows(both, values, true);
  expect_rows(places, orders, true);
}

TEST_P(SortAlongShards, RowsOfAnyLength) {
  const int64_t s = GetParam(), least = s * s * (s - 1);
  int by_columns = 0;
  for (int64_t n : {int64_t{1}, s - 1, s, least - s * s, least, least + 1, 2 * least - 1,
                    2 * least + s, 4 * least + 2 * s - 1}) {
    if (n < 1) continue;
    SCOPED_TRACE(fmt::format("{} elements", n));
    const std::vector<Row> rows = hard_rows(n, DType::F32);
    const Tensor x = split(repeated(rows, DType::F32, 1 << 17));
    by_columns += is_by_columns(x.sort(1).first);
    check_sorts(x, rows, n % 2 == 1);
  }
  EXPECT_GE(by_columns, s == 2 ? 0 : s == 3 ? 2 : 5);
}

// Each row is one of all columns of zeros and ones that there are.
TEST_P(SortAlongShards, ZerosAndOnes) {
  const int64_t s = GetParam(), each = s == 3 ? 15 : 12;
  if (s != 3 && s != 4) return;
  Row all;
  int64_t rows = 1;
  for (int64_t d = 0; d < s; ++d) rows *= each + 1;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t left = i;
    for (int64_t d = 0; d < s; ++d, left /= each + 1) {
      for (int64_t at = 0; at < each; ++at) all.push_back(at < left % (each + 1) ? 0 : 1);
    }
  }
  const Tensor x = split(Tensor(all, {rows, s * each}).cast(DType::F32));
  const Tensor y = x.sort(1).first;
  EXPECT_TRUE(is_by_columns(y));
  const Row got = y.to_vector<double>();
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = all.begin() + i * s * each;
    std::sort(row, row + s * each);
  }
  EXPECT_TRUE(got == all);
}

TEST_P(SortAlongShards, NoElements) {
  EXPECT_EQ(split(Tensor::zeros({4, 0})).sort(1).first.realize().shape(), (Dims{4, 0}));
  EXPECT_EQ(split(Tensor::zeros({0, 1000})).sort(1).first.realize().shape(), (Dims{0, 1000}));
}

constexpr DType kSorted[] = {DType::Bool, DType::I8,  DType::I16, DType::I32, DType::I64,
                             DType::U8,   DType::U16, DType::U32, DType::U64, DType::F16,
                             DType::BF16, DType::F32, DType::F64};

TEST_P(SortAlongShards, AllTypes) {
  const int64_t s = GetParam(), n = (s < 5 ? 20 : 5) * s * s * (s - 1) + 3;
  for (DType type : kSorted) {
    SCOPED_TRACE(std::string(name(type)));
    const std::vector<Row> rows = hard_rows(n, type);
    const Tensor x = split(repeated(rows, type, s == 3 ? 1 << 18 : 1 << 17));
    if (s > 2) {
      EXPECT_TRUE(is_by_columns(x.sort(1).first));
    }
    if (s > 7 && itemsize(type) >= 4) {
      EXPECT_TRUE(is_by_columns(x.argsort(1)));
    }
    for (bool descending : {false, true}) check_sorts(x, rows, descending);
  }
}

// The order of narrow types goes by columns where devices are many.
class SortOverMany : public AlongShards<16> {};
TEST_P(SortOverMany, NarrowTypes) {
  const int64_t s = GetParam(), n = 10 * s * s * (s - 1) + 3;
  for (DType type : {DType::U8, DType::Bool, DType::BF16}) {
    SCOPED_TRACE(std::string(name(type)));
    const std::vector<Row> rows = hard_rows(n, type);
    const Tensor x = split(repeated(rows, type, 1 << 19), s);
    EXPECT_TRUE(is_by_columns(x.argsort(1)));
    check_sorts(x, rows, type == DType::U8);
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, SortOverMany, testing::Values(16));

Tensor shuffled(int64_t n) {
  Row row;
  for (int64_t i = 0; i < n; ++i) row.push_back(double(i * 7919 % 10007 % 5003));
  return Tensor(row).cast(DType::F32).realize();
}

// Sorts a row alone, beside other dims and along the first dim.
TEST_P(SortAlongShards, OtherLayouts) {
  const int64_t s = GetParam(), n = 50'003;
  const Mesh mesh({{"d", s}});
  const Tensor row = shuffled(n), few = shuffled(3 * n).reshape({n, 3}).realize();
  const Tensor x = row.shard(mesh, {{"d", Shard(0)}}).realize();
  const Tensor y = few.shard(mesh, {{"d", Shard(0)}}).realize();
  for (bool descending : {false, true}) {
    const auto [values, order] = row.sort(0, descending);
    expect_same(x.sort(0, descending).first, values, 0, "values of one row");
    expect_same(x.argsort(0, descending), order, 0, "order of one row");
    expect_same(x.topk(n, 0, descending).first, values, 0, "all of the largest");
    expect_same(y.sort(0, descending).first, few.sort(0, descending).first, 0, "columns");
  }
  // A row that is looked up by its own order, and by that of others.
  const Tensor order = (row - 2500).abs().argsort(0), there = (x - 2500).abs().argsort(0);
  expect_same(x.gather(0, there), row.gather(0, order), 0, "by the order of others");
  expect_same(x.gather(0, x.argsort(0)), row.gather(0, row.argsort(0)), 0, "by its own order");
}

TEST_P(SortAlongShards, GradientsAndCapturedSteps) {
  const int64_t s = GetParam(), n = 40'000;
  const Mesh mesh({{"d", s}});
  const Tensor row = shuffled(n), weights = (Tensor::arange(n).cast(DType::F32) * 0.01).sin();
  const Tensor x = row.shard(mesh, {{"d", Shard(0)}}).realize();
  const auto gradient = [&](const Tensor& v) {
    return (v.sort(0).first * weights).sum().gradient({v})[0];
  };
  expect_same(gradient(x), gradient(row), 0, "gradient");
  Jit step = [](const Tensor& v) { return v.sort(0).first; };
  Jit order = [](const Tensor& v) { return v.argsort(0, true); };
  for (int i = 0; i < 3; ++i) {
    const Tensor now = (x * (i - 1)).realize();
    expect_same(step(now), (row * (i - 1)).sort(0).first, 0, "captured values");
    expect_same(order(now), (row * (i - 1)).argsort(0, true), 0, "captured order");
  }
}

// Equal elements keep their order, and each has the gradient of its own place.
TEST_P(SortAlongShards, GradientsOfAllTypes) {
  const int64_t s = GetParam(), least = s * s * (s - 1);
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    for (int64_t n : {least + 1, 2 * least, (s < 5 ? 20 : 5) * least + 3}) {
      const std::vector<Row> rows = hard_rows(n, type);
      const Tensor x = repeated(rows, type, 1 << 16), there = split(x);
      const Tensor arrives =
          ((Tensor::arange(x.numel()).reshape(x.shape()) % 251) - 125).cast(type).realize();
      for (bool descending : {false, true}) {
        SCOPED_TRACE(fmt::format("{} elements of {}", n, name(type)));
        const auto gradient = [&](const Tensor& v, const Tensor& g) {
          return v.sort(1, descending).first.gradient({v}, g)[0];
        };
        const Tensor want = gradient(x, arrives);
        const Tensor none = (arrives * -0.0).realize();  // a sum makes 0 of -0
        for (double zero : gradient(there, split(none)).to_vector<double>())
          ASSERT_FALSE(std::signbit(zero));
        expect_same(gradient(there, split(arrives)), want, 0, "of what lies as the rows do");
        expect_same(gradient(there, arrives.shard(there.sharding().mesh)), want, 0, "of the whole");
        // Beside what is sorted, and by whoever else is looked up in this order.
        auto [values, order] = there.sort(1, descending);
        const Tensor both = values.gradient({there}, split(arrives))[0];
        Tensor::realize({values, order, both});
        expect_same(both, want, 0, "beside values and order");
        expect_same(values, x.sort(1, descending).first, 0, "values");
        expect_same(order, x.argsort(1, descending), 0, "order");
      }
    }
  }
}

// The draw sorts keys of its own.
TEST_P(SortAlongShards, DrawsWithoutReplacement) {
  const Mesh mesh({{"d", GetParam()}});
  const auto drawn = [&](const Tensor& weights) {
    Tensor::manual_seed(5);
    return weights.multinomial(weights.shape(0), false);
  };
  const Tensor weights = shuffled(20'000) + 1;
  expect_same(drawn(weights.shard(mesh, {{"d", Shard(0)}})), drawn(weights), 0, "multinomial");
  Tensor::manual_seed(5);
  const Tensor want = Tensor::randperm(20'000).realize();
  Tensor::manual_seed(5);
  expect_same(Tensor::randperm(20'000).shard(mesh, {{"d", Shard(0)}}), want, 0, "randperm");
}

INSTANTIATE_TEST_SUITE_P(Devices, SortAlongShards, testing::Values(2, 3, 4, 5, 8));

class SortOnGrids : public OnDevices<8, testing::Test> {};

TEST_F(SortOnGrids, OneAxisOrBothDivideTheRows) {
  const Tensor x = shuffled(6 * 9'001).reshape({6, 9'001}).realize();
  const Mesh mesh({{"r", 2}, {"c", 4}});
  const std::vector<std::vector<Placement>> places{{Replicate, Shard(1)},
                                                   {Shard(0), Shard(1)},
                                                   {Shard(1), Shard(0)},
                                                   {Shard(1), Replicate},
                                                   {Shard(1), Shard(1)}};
  for (const std::vector<Placement>& place : places) {
    SCOPED_TRACE(place[0].to_string() + " " + place[1].to_string());
    const Tensor y = x.shard(mesh, {{"r", place[0]}, {"c", place[1]}}).realize();
    expect_same(y.sort(1).first, x.sort(1).first, 0, "values");
    expect_same(y.argsort(1), x.argsort(1), 0, "order");
    expect_same(y.sort(0).first, x.sort(0).first, 0, "values of the other dim");
  }
  const Tensor y = x.shard(mesh, {{"r", Shard(0)}, {"c", Shard(1)}}).realize();
  EXPECT_EQ(y.sort(1).first.sharding().placements[1], Shard(1));
}

TEST_F(SortOnGrids, GradientsToo) {
  const Tensor x = shuffled(6 * 9'001).reshape({6, 9'001}).realize();
  const Tensor weights = (Tensor::arange(x.numel()).reshape(x.shape()) % 127).cast(DType::F32);
  const auto gradient = [&](const Tensor& v) {
    return (v.sort(1).first * weights).sum().gradient({v})[0];
  };
  const Tensor want = gradient(x);
  int by_columns = 0;
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 4}, {2, 2}, {3, 1}, {1, 8}, {4, 2}}) {
    const Mesh mesh({{"r", rows}, {"c", columns}});
    for (const std::vector<Placement>& place :
         std::vector<std::vector<Placement>>{{Replicate, Shard(1)},
                                             {Shard(0), Shard(1)},
                                             {Shard(1), Shard(0)},
                                             {Shard(1), Replicate},
                                             {Shard(1), Shard(1)}}) {
      SCOPED_TRACE(mesh.to_string() + " " + place[0].to_string() + " " + place[1].to_string());
      const Tensor g = gradient(x.shard(mesh, {{"r", place[0]}, {"c", place[1]}}).realize());
      by_columns += columns == 8 && place[1] == Shard(1) && g.sharding().placements[1] == Shard(1);
      expect_same(g, want, 0, "gradient");
    }
  }
  EXPECT_EQ(by_columns, 2);  // where no other axis divides rows as well
}

// --- bytes ---------------------------------------------------------------------------------------

class SortBytes : public test::Planned {};

TEST_F(SortBytes, RowsAreSentTwiceInsteadOfToEachDevice) {
  const int64_t million = 1'000'000;
  for (int s : {3, 4, 8, 64}) {
    SCOPED_TRACE(fmt::format("{} devices", s));
    devices(s);
    const double ideal = 4.0 * million / s * (s - 1) / s, gathered = ideal * s;
    const double values = s < 64 ? 2.01 : 2.75;
    const Tensor x = split({million}, 0);
    EXPECT_LE(double(sent(x.sort(0).first)), values * ideal);
    EXPECT_LE(double(sent(x.sort(0, true).first)), values * ideal);
    EXPECT_LE(double(sent(split({2, million / 2}, 1).sort(1).first)), values * ideal * 1.5);
    // An order, alone or beside the values, takes places that travel as well.
    const double order = std::min(gathered, 2 * values * ideal) * 1.001;
    EXPECT_LE(double(sent(x.argsort(0))), order);
    const auto [both, places] = x.sort(0);
    EXPECT_LE(double(sent({both, places})), order);
    EXPECT_LE(double(sent(split({million}, 0, DType::BF16).sort(0).first)), values * ideal / 2);
    EXPECT_LE(double(sent(split({million}, 0, DType::I64).sort(0).first)), values * ideal * 2);
    // The few largest are candidates still.
    EXPECT_LE(double(sent(x.topk(100, 0).first)), 1.1 * (s - 1) * 100 * 8 + 400 * 2);
  }
}

// A gradient takes the way of the sort back, without places; the sort itself takes them, so that of
// equal elements each gets its own.
TEST_F(SortBytes, GradientsAreSentAsOftenAsValues) {
  const int64_t million = 1'000'000;
  for (int s : {4, 8, 64}) {
    SCOPED_TRACE(fmt::format("{} devices", s));
    devices(s);
    const double ideal = 4.0 * million / s * (s - 1) / s, gathered = ideal * s;
    const double values = s < 64 ? 2.01 : 2.75;
    const double order = std::min(gathered, 2 * values * ideal) * 1.001;
    for (DType type : {DType::F32, DType::BF16, DType::F64}) {
      const double wide = double(itemsize(type)) / 4, forth = values * ideal * (wide + 1);
      const Tensor x = split({million}, 0, type), arrives = split({million}, 0, type);
      auto [y, places] = x.sort(0, true);
      const Tensor g = y.gradient({x}, arrives)[0];
      EXPECT_LE(double(sent(g)), forth + values * ideal * wide) << name(type);
      EXPECT_LE(double(sent({y, places, g})), forth + values * ideal * wide) << name(type);
      if (s > 4) {
        EXPECT_EQ(g.sharding().placements[0], Shard(0)) << name(type);
      }
    }
    const Tensor x = split({million}, 0);
    EXPECT_LE(double(sent((x.sort(0).first * stored({million}, {})).sum().gradient({x}))),
              order + values * ideal);
  }
}

// Where parts are short the row is gathered.
TEST_F(SortBytes, ShortRowsAreGathered) {
  devices(8);
  for (int64_t n : {1, 7, 8, 100, 8 * 55}) {
    const int64_t part = (n + 7) / 8;
    EXPECT_LE(sent(split({n}, 0).sort(0).first), 7 * part * 4) << n;
  }
}

}  // namespace
}  // namespace tinyshard::sort_along_shards_test
