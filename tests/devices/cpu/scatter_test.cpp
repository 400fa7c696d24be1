#include "devices/cpu/scatter.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "devices/cpu/thread_pool.h"
#include "tests/devices/cpu/reference.h"

namespace tinyshard::scatter_test {
namespace {

using test::Buffer;

struct Case {
  const char* name;
  int64_t outer, rows_in, rows_out, inner;
  bool by_outer, by_inner;  // whether the index varies along them
};

constexpr Case kCases[] = {
    {"embedding", 1, 300, 40, 128, false, false},
    {"narrow_embedding", 1, 900, 7, 3, false, false},
    {"batched_rows", 5, 33, 9, 17, true, false},
    {"gather", 4, 21, 6, 19, true, true},
    {"shared_over_outer", 6, 10, 10, 8, false, true},
    {"histogram", 1, 5000, 11, 1, false, false},
    {"one_destination", 1, 100, 1, 50, false, false},
    {"no_sources", 2, 0, 5, 4, true, true},
    {"large", 1, 2000, 500, 160, false, false},
    {"few_rows", 1, 40, 900, 33, false, false},
    {"few_rows_of_each", 3, 20, 300, 5, true, false},
    {"few_elements", 2, 12, 70, 1, true, true},
};

ScatterSpec spec_of(const Case& c, DType dtype, DType index) {
  ScatterSpec s;
  s.dtype = dtype, s.index_dtype = index;
  s.outer = c.outer, s.rows_in = c.rows_in, s.rows_out = c.rows_out, s.inner = c.inner;
  int64_t inner = c.by_inner ? c.inner : 1;
  s.index_inner = c.by_inner ? 1 : 0;
  s.index_row = inner;
  s.index_outer = c.by_outer ? inner * c.rows_in : 0;
  return s;
}

template <class Index>
std::vector<Index> indices(const Case& c) {
  int64_t count = (c.by_outer ? c.outer : 1) * c.rows_in * (c.by_inner ? c.inner : 1);
  std::vector<Index> index(static_cast<size_t>(count));
  // Skewed: half of the sources go to one destination.
  for (int64_t i = 0; i < count; ++i)
    index[static_cast<size_t>(i)] =
        static_cast<Index>(i % 2 ? c.rows_out / 2 : (i * 7919 + i / 3) % c.rows_out);
  return index;
}

class Scatter : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(Scatter, MatchesDoublePrecision) {
  auto [which, threads, dtype] = GetParam();
  const Case& c = kCases[which];
  SCOPED_TRACE(c.name);
  ThreadPool pool(threads);
  ScatterSpec s = spec_of(c, dtype, DType::I64);
  auto index = indices<int64_t>(c);
  Buffer src = Buffer::random(dtype, c.outer * c.rows_in * c.inner, 1);
  Buffer base = Buffer::random(dtype, c.outer * c.rows_out * c.inner, 2);
  for (bool with_base : {false, true}) {
    int64_t size = c.outer * c.rows_out * c.inner;
    std::vector<double> expected(static_cast<size_t>(size)), scale(expected.size());
    for (int64_t i = 0; with_base && i < size; ++i) expected[i] = base.get(i);
    for (int64_t o = 0; o < c.outer; ++o)
      for (int64_t r = 0; r < c.rows_in; ++r)
        for (int64_t i = 0; i < c.inner; ++i) {
          int64_t to = index[o * s.index_outer + r * s.index_row + i * s.index_inner];
          double v = src.get((o * c.rows_in + r) * c.inner + i);
          expected[(o * c.rows_out + to) * c.inner + i] += v;
          scale[(o * c.rows_out + to) * c.inner + i] += std::abs(v);
        }
    Buffer out = Buffer::filled(dtype, size, NAN);
    scatter_add(s, with_base ? base.data() : nullptr, index.data(), src.data(), out.data(), pool);
    // Allows a rounding to the stored type, and f32 sums before it.
    double store = dtype == DType::BF16 ? 4e-3 : dtype == DType::F16 ? 5e-4 : 1e-12;
    double sum = dtype == DType::F64 ? 1e-15 : 1e-6;
    for (int64_t i = 0; i < size; ++i)
      ASSERT_NEAR(out.get(i), expected[i], store * std::abs(expected[i]) + sum * scale[i] + sum);
    // In place on the base gives the same bits.
    if (with_base) {
      Buffer in_place = base;  // NOLINT(performance-unnecessary-copy-initialization)
      scatter_add(s, in_place.data(), index.data(), src.data(), in_place.data(), pool);
      EXPECT_EQ(in_place.bytes(), out.bytes());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Scatter,
    ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kCases))),
                       ::testing::Values(1, 2, 7),
                       ::testing::Values(DType::F64, DType::F32, DType::F16, DType::BF16)),
    [](const auto& info) {
      return std::string(kCases[std::get<0>(info.param)].name) + "_" +
             std::to_string(std::get<1>(info.param)) + "_threads_" +
             std::string(name(std::get<2>(info.param)));
    });

TEST(ScatterBits, AreTheSameForAnyThreadCount) {
  const Case& c = kCases[8];
  ScatterSpec s = spec_of(c, DType::F32, DType::I32);
  auto index = indices<int32_t>(c);
  Buffer src = Buffer::random(DType::F32, c.rows_in * c.inner, 1);
  ThreadPool one(1);
  Buffer expected(DType::F32, c.rows_out * c.inner);
  scatter_add(s, nullptr, index.data(), src.data(), expected.data(), one);
  for (int threads : {2, 3, 16, 40}) {
    ThreadPool pool(threads);
    Buffer out(DType::F32, c.rows_out * c.inner);
    scatter_add(s, nullptr, index.data(), src.data(), out.data(), pool);
    EXPECT_EQ(out.bytes(), expected.bytes());
  }
}

// --- orders --------------------------------------------------------------------------------------

// Scatters as the words say, one element after the other.
template <class T, class Index>
std::vector<T> in_order(const ScatterSpec& s, const std::vector<T>& base,
                        const std::vector<Index>& index, const std::vector<T>& src,
                        const std::function<T(T, T)>& next) {
  std::vector<T> out = base;
  for (int64_t o = 0; o < s.outer; ++o)
    for (int64_t r = 0; r < s.rows_in; ++r)
      for (int64_t i = 0; i < s.inner; ++i) {
        auto to = int64_t{index[o * s.index_outer + r * s.index_row + i * s.index_inner]};
        if (to < 0 || to >= s.rows_out) continue;
        T& at = out[(o * s.rows_out + to) * s.inner + i];
        at = next(at, src[(o * s.rows_in + r) * s.inner + i]);
      }
  return out;
}

// Every third entry of the case's lies outside: before, behind, or far away.
template <class Index>
std::vector<Index> indices_and_strays(const Case& c) {
  std::vector<Index> index = indices<Index>(c);
  using Limits = std::numeric_limits<Index>;
  const Index strays[] = {-1, static_cast<Index>(c.rows_out), Limits::lowest(), Limits::max()};
  for (size_t i = 0; i < index.size(); i += 3) index[i] = strays[i / 3 % 4];
  return index;
}

template <class T, class Index>
void expect_in_order(const Case& c, DType dtype, const std::function<T(T, T)>& next, bool writes,
                     ReduceOp op) {
  ScatterSpec s = spec_of(c, dtype, sizeof(Index) == 8 ? DType::I64 : DType::I32);
  s.writes = writes, s.op = op;
  const std::vector<Index> index = indices_and_strays<Index>(c);
  std::vector<T> src(static_cast<size_t>(c.outer * c.rows_in * c.inner)),
      base(static_cast<size_t>(c.outer * c.rows_out * c.inner));
  for (size_t i = 0; i < src.size(); ++i)
    src[i] = static_cast<T>(static_cast<T>(1 + i * 7919 % 251) / T{3});
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<T>(i % 2 + 1);
  const std::vector<T> expected = in_order(s, base, index, src, next);
  for (int threads : {1, 2, 3, 16}) {
    ThreadPool pool(threads);
    std::vector<T> out(base.size()), in_place = base;
    scatter_add(s, base.data(), index.data(), src.data(), out.data(), pool);
    EXPECT_EQ(out, expected) << c.name << " " << threads << " threads, " << name(dtype);
    scatter_add(s, in_place.data(), index.data(), src.data(), in_place.data(), pool);
    EXPECT_EQ(in_place, expected) << c.name << " " << threads << " threads, in place";
  }
}

constexpr Case kOrdered[] = {
    {"line", 1, 40000, 30000, 1, false, false},
    {"crowded_line", 1, 40000, 5, 1, false, false},
    {"lines", 3, 20000, 7000, 1, true, false},
    {"few_columns", 1, 9000, 700, 5, false, false},
    {"columns_of_their_own", 1, 9000, 700, 5, false, true},
    {"many_columns", 2, 900, 70, 65, true, false},
    {"many_of_their_own", 2, 900, 70, 65, true, true},
    {"one_place", 1, 30000, 1, 1, false, false},
    {"no_entries", 1, 0, 30000, 1, false, false},
};

template <class T>
T second(T, T b) {
  return b;
}

TEST(ScatterOrder, TheLastRowThatNamesAPlaceIsWritten) {
  for (const Case& c : kOrdered) {
    expect_in_order<uint8_t, int32_t>(c, DType::Bool, second<uint8_t>, true, ReduceOp::Max);
    expect_in_order<uint16_t, int64_t>(c, DType::BF16, second<uint16_t>, true, ReduceOp::Max);
    expect_in_order<float, int32_t>(c, DType::F32, second<float>, true, ReduceOp::Max);
    expect_in_order<double, int64_t>(c, DType::F64, second<double>, true, ReduceOp::Max);
  }
}

// Sums and products round after each row, so that another order gives other bits.
TEST(ScatterOrder, RowsAreReducedOneAfterTheOther) {
  for (const Case& c : kOrdered) {
    expect_in_order<float, int32_t>(
        c, DType::F32, [](float a, float b) { return a + b; }, false, ReduceOp::Sum);
    expect_in_order<float, int64_t>(
        c, DType::F32, [](float a, float b) { return std::max(a, b); }, false, ReduceOp::Max);
    expect_in_order<double, int32_t>(
        c, DType::F64, [](double a, double b) { return std::min(a, b); }, false, ReduceOp::Min);
    expect_in_order<uint16_t, int64_t>(
        c, DType::U16, [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a * b); }, false,
        ReduceOp::Prod);
  }
}

TEST(ScatterIntegers, Wrap) {
  ThreadPool pool(2);
  ScatterSpec s;
  s.dtype = DType::I8, s.rows_in = 3, s.rows_out = 2, s.inner = 2;
  int32_t index[] = {0, 1, 0};
  int8_t src[] = {100, 1, 2, 3, 100, -5}, out[4] = {};
  scatter_add(s, nullptr, index, src, out, pool);
  EXPECT_EQ(out[0], static_cast<int8_t>(200));
  EXPECT_EQ(out[1], -4);
  EXPECT_EQ(out[2], 2);
  EXPECT_EQ(out[3], 3);
  s.dtype = DType::I64, s.inner = 1;
  int64_t wide[] = {1, 2, int64_t{1} << 62}, sums[2] = {};
  scatter_add(s, nullptr, index, wide, sums, pool);
  EXPECT_EQ(sums[0], (int64_t{1} << 62) + 1);
  EXPECT_EQ(sums[1], 2);
}

TEST(Scatter, AnIndexOutOfRangeIsAddedNowhere) {
  for (int threads : {1, 4})
    for (int64_t bad : {int64_t{-1}, int64_t{10}, int64_t{1} << 20, INT64_MIN, INT64_MAX})
      for (bool apart : {false, true}) {
        ThreadPool pool(threads);
        ScatterSpec s;
        s.index_dtype = DType::I64, s.rows_in = 5000, s.rows_out = 10, s.inner = 2;
        s.index_row = 2, s.index_inner = apart ? 1 : 0;
        std::vector<int64_t> index(10000, 3);
        index[8000] = bad;
        std::vector<float> src(10000, 1.f), out(20, -7.f);
        scatter_add(s, nullptr, index.data(), src.data(), out.data(), pool);
        for (int64_t i = 0; i < 20; ++i) {
          float expected = i / 2 != 3 ? 0.f : !apart || i == 6 ? 4999.f : 5000.f;
          EXPECT_EQ(out[static_cast<size_t>(i)], expected) << i;
        }
      }
}

TEST(ScatterErrors, UnknownTypesAreRefused) {
  ThreadPool pool(1);
  ScatterSpec s;
  s.dtype = DType::Bool;
  EXPECT_THROW(scatter_add(s, nullptr, nullptr, nullptr, nullptr, pool), UserError);
  s.dtype = DType::F32, s.index_dtype = DType::U8;
  EXPECT_THROW(scatter_add(s, nullptr, nullptr, nullptr, nullptr, pool), UserError);
}

}  // namespace
}  // namespace tinyshard::scatter_test
