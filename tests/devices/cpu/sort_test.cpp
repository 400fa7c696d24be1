// The order of rows of unsigned keys is that of std::stable_sort, for any number of threads, of
// places asked for, and of bytes in which the keys differ.
#include "devices/cpu/sort.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "devices/cpu/thread_pool.h"

namespace tinyshard::sort_test {
namespace {

uint64_t mixed(uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  i = (i ^ (i >> 29)) * 0xbf58476d1ce4e5b9ull;
  return i ^ (i >> 32);
}

enum class Kind { Any, Few, Same, Descending, UpperFew, LowByteZero };
constexpr Kind kKinds[] = {Kind::Any,        Kind::Few,      Kind::Same,
                           Kind::Descending, Kind::UpperFew, Kind::LowByteZero};

uint64_t key(Kind kind, uint64_t i, int bits) {
  uint64_t r = mixed(i);
  switch (kind) {
    case Kind::Any:
      return r;
    case Kind::Few:
      return r % 5;
    case Kind::Same:
      return 7;
    case Kind::Descending:
      return ~i;
    case Kind::UpperFew:  // long runs of equal upper halves
      return (r % 3) << (bits - 2) | (r >> 40) % 50000;
    default:
      return r << 8;
  }
}

template <class Key>
void expect_sorted(const SortSpec& s, Kind kind, int threads) {
  ThreadPool pool(threads);
  std::vector<Key> keys(size_t(s.rows * s.n));
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = Key(key(kind, i, 8 * sizeof(Key)));
  std::vector<int32_t> order(size_t(s.rows * s.k), -1);
  struct alignas(64) Line {
    char bytes[64];
  };
  auto scratch = std::make_unique<Line[]>(size_t(sort_scratch_bytes(s, threads) / 64 + 1));
  sort_rows(s, keys.data(), order.data(), scratch.get(), pool);
  for (int64_t row = 0; row < s.rows; ++row) {
    const Key* mine = keys.data() + row * s.n;
    std::vector<int32_t> expected(static_cast<size_t>(s.n));
    std::iota(expected.begin(), expected.end(), 0);
    std::ranges::stable_sort(expected, [&](int32_t a, int32_t b) { return mine[a] < mine[b]; });
    ASSERT_TRUE(
        std::equal(order.begin() + row * s.k, order.begin() + (row + 1) * s.k, expected.begin()))
        << sizeof(Key) << " bytes, row " << row << " of " << s.rows << ", n " << s.n << ", k "
        << s.k << ", kind " << int(kind) << ", threads " << threads;
  }
}

void expect_sorted(int64_t rows, int64_t n, int64_t k, Kind kind, int threads) {
  expect_sorted<uint8_t>({DType::U8, rows, n, k}, kind, threads);
  expect_sorted<uint16_t>({DType::U16, rows, n, k}, kind, threads);
  expect_sorted<uint32_t>({DType::U32, rows, n, k}, kind, threads);
  expect_sorted<uint64_t>({DType::U64, rows, n, k}, kind, threads);
}

TEST(Sort, ShortRows) {
  for (Kind kind : kKinds) {
    for (int64_t n : {1, 2, 3, 4, 5, 31, 127, 128, 129, 255, 256, 257, 1000}) {
      for (int64_t rows : {1, 3, 40}) {
        for (int threads : {1, 3}) expect_sorted(rows, n, n, kind, threads);
      }
    }
  }
}

TEST(Sort, LongRowsAreCutIntoParts) {
  for (Kind kind : kKinds) {
    for (int threads : {1, 2, 5}) expect_sorted(1, 65537, 65537, kind, threads);
  }
  expect_sorted(2, 140000, 140000, Kind::UpperFew, 3);
  expect_sorted(3, 70000, 70000, Kind::Any, 2);
  expect_sorted(1, 1000000, 1000000, Kind::Any, 2);
}

TEST(Sort, TheFirstPlacesAreThoseOfAllOfThem) {
  for (Kind kind : kKinds) {
    for (int64_t n : {5, 128, 300, 5000}) {
      for (int64_t k : {int64_t{1}, int64_t{2}, n / 8, n / 4, n / 3, n - 1}) {
        if (k < 1) continue;
        for (int threads : {1, 4}) expect_sorted(3, n, k, kind, threads);
      }
    }
  }
  for (Kind kind : kKinds) {
    for (int64_t k : {1, 70, 20000, 40000}) expect_sorted(1, 150000, k, kind, 4);
  }
}

TEST(Sort, UnsignedKeysOfUpTo64Bits) {
  EXPECT_TRUE(sort_supports({DType::U8, 1, 5, 5}));
  EXPECT_FALSE(sort_supports({DType::I32, 1, 5, 5}));
  EXPECT_FALSE(sort_supports({DType::F32, 1, 5, 5}));
  EXPECT_FALSE(sort_supports({DType::U32, 1, int64_t{1} << 31, 5}));
}

}  // namespace
}  // namespace tinyshard::sort_test
