// Numbers at the edge: NaN among maxima, integers beside numbers that their type does not hold,
// powers of special values, bits of one size as another. Oracles are <cmath> and 128-bit integers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::numbers_test {
namespace {

using Doubles = std::vector<double>;
using Int64s = std::vector<int64_t>;
using Wide = __int128;
constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

constexpr DType kFloats[] = {DType::F64, DType::F32, DType::F16, DType::BF16};
constexpr DType kInts[] = {DType::I8, DType::I16, DType::I32, DType::I64,
                           DType::U8, DType::U16, DType::U32, DType::U64};

template <class F>
std::string message_of(F&& call) {
  return test::message_of<UserError>(call);
}

Tensor of(const Doubles& values, DType dtype) { return Tensor(values).cast(dtype).realize(); }

// --- NaN among maxima ----------------------------------------------------------------------------

// The masks are known when the kernel is made, and become ands and ors. The compiler once took
// minutes for such a kernel on processors with 512-bit vectors; no length may take long.
TEST(Selections, CountConcatenationsOfManyParts) {
  for (int64_t width : {8, 16, 32, 48}) {
    for (int parts : {2, 3, 4, 5, 8}) {
      std::vector<int16_t> values(size_t(7 * width));
      int64_t positive = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = int16_t(int(i * 7 % 5) - 2);
        positive += values[i] > 0;
      }
      const Tensor chosen = Tensor(values, {7, width}) > 0, none = chosen != chosen;
      std::vector<Tensor> all(size_t(parts), chosen);
      all[1] = none;
      EXPECT_EQ(cat(all, 1).sum().item<int64_t>(), positive * (parts - 1)) << width << " " << parts;
    }
  }
}

// A number that fills missing places has the type of the values that are there.
TEST(Selections, KeepTheirType) {
  Tensor bits(std::vector<bool>{true, false, true});
  EXPECT_EQ(bits.masked_select(bits).dtype(), DType::Bool);
  Tensor filled = bits.masked_select(bits, 3);
  EXPECT_EQ(filled.dtype(), DType::Bool);
  EXPECT_EQ(filled.to_vector<int>(), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(bits.cast(DType::I8).masked_select(bits, 3, 2.0).dtype(), DType::I8);
}

TEST(Nan, IsWhereTheMaximumAndTheMinimumAre) {
  struct Row {
    Doubles x;
    int64_t max, min;
  };
  const Row rows[] = {{{1, kNan, 3}, 1, 1},    {{kNan, kNan}, 0, 0},       {{3, 1, kNan}, 2, 2},
                      {{-kInf, -kInf}, 0, 0},  {{kInf, kNan, kInf}, 1, 1}, {{2, 5, 5, 1, 1}, 1, 3},
                      {{kNan, 1, kNan}, 0, 0}, {{kInf, 1, kInf}, 0, 1}};
  for (DType dtype : kFloats) {
    for (const Row& row : rows) {
      Tensor x = of(row.x, dtype);
      SCOPED_TRACE(::testing::PrintToString(row.x) + " " + std::string(name(dtype)));
      EXPECT_EQ(x.argmax().item<int64_t>(), row.max);
      EXPECT_EQ(x.argmin().item<int64_t>(), row.min);
      Tensor columns = x.unsqueeze(1).expand({-1, 3});
      EXPECT_EQ(columns.argmax(0).to_vector<int64_t>(), Int64s(3, row.max));
      EXPECT_EQ(columns.argmin(0, true).to_vector<int64_t>(), Int64s(3, row.min));
    }
  }
  // Long enough to be split, with the NaN in the tail of the vectors.
  std::vector<float> many(100003, 1);
  many[100001] = many[100002] = NAN;
  EXPECT_EQ(Tensor(many).argmax().item<int>(), 100001);
  EXPECT_EQ(Tensor(many).argmin().item<int>(), 100001);
}

TEST(Nan, HasAnIndexInPools) {
  Tensor x = Tensor(Doubles{1, kNan, 2, 3,  //
                            kNan, 0, 9, 4,  //
                            5, 6, 7, 8,     //
                            1, 1, kNan, 2},
                    {1, 1, 4, 4});
  for (DType dtype : kFloats) {
    auto [values, places] = x.cast(dtype).max_pool2d_with_indices();
    EXPECT_EQ(places.to_vector<int64_t>(), (Int64s{1, 6, 9, 14}));
    EXPECT_TRUE(std::isnan(values.to_vector<double>()[3]));
  }
  Tensor low = Tensor::full({1, 1, 2, 2}, -kInf);
  EXPECT_EQ(low.max_pool2d_with_indices(3, {.padding = 1}).second.to_vector<int64_t>(),
            (Int64s{0}));
  // A dilated window whose taps all miss the image.
  std::string message = message_of([] {
    (void)Tensor::ones({1, 1, 3, 3}).max_pool2d_with_indices({2, 2}, {.dilation = 4, .padding = 1});
  });
  EXPECT_NE(message.find("nothing but padding"), std::string::npos) << message;
}

TEST(Nan, IsTheLargestNumberToSort) {
  Doubles x{2, kNan, -kInf, kInf, 1, kNan, 2};
  for (DType dtype : kFloats) {
    Tensor t = of(x, dtype);
    EXPECT_EQ(t.argsort().to_vector<int64_t>(), (Int64s{2, 4, 0, 6, 3, 1, 5}));
    EXPECT_EQ(t.argsort(-1, true).to_vector<int64_t>(), (Int64s{1, 5, 3, 0, 6, 4, 2}));
    auto [values, places] = t.topk(3);
    EXPECT_EQ(places.to_vector<int64_t>(), (Int64s{1, 5, 3}));
    EXPECT_TRUE(std::isnan(values.to_vector<double>()[1]));
    EXPECT_EQ(t.topk(2, -1, false).second.to_vector<int64_t>(), (Int64s{2, 4}));
  }
}

TEST(Nan, StaysInRunningMaxima) {
  Tensor x = of({1, kNan, 3, kNan}, DType::F32);
  auto [best, places] = x.cummax();
  EXPECT_EQ(places.to_vector<int64_t>(), (Int64s{0, 1, 1, 1}));
  EXPECT_TRUE(std::isnan(best.to_vector<double>()[2]));
  EXPECT_EQ(x.cummin().second.to_vector<int64_t>(), (Int64s{0, 1, 1, 1}));
}

TEST(Nothing, HasNoPlaceOfAMaximum) {
  Tensor x = Tensor::zeros({2, 0, 3});
  for (auto call :
       {+[](const Tensor& x) { (void)x.argmax(); }, +[](const Tensor& x) { (void)x.argmin(1); }}) {
    std::string message = message_of([&] { call(x); });
    EXPECT_NE(message.find("has no elements along"), std::string::npos) << message;
  }
  EXPECT_EQ(x.max(0).shape(), (Dims{0, 3})) << "no maximum is asked for";
  EXPECT_EQ(x.max().item<float>(), -INFINITY);
  EXPECT_EQ(x.min({0, 1}).to_vector<float>(), std::vector<float>(3, INFINITY));
  EXPECT_EQ(x.argmax(2, true).shape(), (Dims{2, 0, 1}));
  EXPECT_EQ(x.sum(1).to_vector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(x.prod(1, true).to_vector<float>(), std::vector<float>(6, 1));
  EXPECT_TRUE(x.all().item<bool>());
  EXPECT_FALSE(x.any().item<bool>());
}

TEST(Nothing, KeepsTheReducedDims) {
  for (DType dtype : {DType::F32, DType::I32, DType::Bool}) {
    Tensor x = Tensor::zeros({2, 0, 4}, dtype);
    EXPECT_EQ(x.sum(2, true).shape(), (Dims{2, 0, 1}));
    EXPECT_EQ(x.sum(2).shape(), (Dims{2, 0}));
    EXPECT_EQ(x.sum({0, 2}, true).shape(), (Dims{1, 0, 1}));
    EXPECT_EQ(x.max(2, true).shape(), (Dims{2, 0, 1}));
    EXPECT_EQ(x.sum({1, 2}, true).shape(), (Dims{2, 1, 1}));
    EXPECT_TRUE(x.sum(2, true).to_vector<float>().empty());
  }
  EXPECT_EQ(Tensor::zeros({2, 0, 4}).mean(2, true).shape(), (Dims{2, 0, 1}));
  EXPECT_EQ(Tensor::zeros({2, 0, 4}).softmax(2).shape(), (Dims{2, 0, 4}));
}

// --- integers beside numbers ---------------------------------------------------------------------

// The least and the largest number of a type, as bits and as a number.
std::pair<Wide, Wide> range_of(DType dtype) {
  int bits = 8 * int(itemsize(dtype));
  if (is_unsigned_int(dtype)) return {0, (Wide{1} << bits) - 1};
  return {-(Wide{1} << (bits - 1)), (Wide{1} << (bits - 1)) - 1};
}

Tensor ints(const std::vector<Wide>& values, DType dtype) {
  Int64s bits(values.begin(), values.end());
  return Tensor(bits).cast(dtype).realize();
}

TEST(Integers, AreComparedAsNumbers) {
  const Int64s integers{-129,  -128,       -1,         0,           1,         127,
                        128,   255,        256,        356,         32768,     -32769,
                        65536, 4294967296, 2147483648, -2147483649, INT64_MIN, INT64_MAX};
  const Doubles reals{-0.5, 0.5,  254.5, 255.5, -128.5, 127.25, 16777217.0,
                      1e19, 1e30, -1e30, kInf,  -kInf,  kNan,   3.0};
  for (DType dtype : kInts) {
    auto [low, high] = range_of(dtype);
    std::vector<Wide> values{low, low + 1, 0, 1, 3, 100, high - 1, high};
    Tensor x = ints(values, dtype);
    auto check = [&](auto number, auto less) {  // less(a, b) of exact numbers
      auto expect = [&](const Tensor& got, auto holds, const char* op) {
        ASSERT_EQ(got.dtype(), DType::Bool);
        std::vector<int> out = got.to_vector<int>();
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_EQ(out[i], int(holds(values[i])))
              << name(dtype) << " " << int64_t(values[i]) << op << number;
      };
      auto lt = [&](Wide v) { return less(v, number); };
      auto gt = [&](Wide v) { return less(number, v); };
      bool nan = number != number;
      auto eq = [&](Wide v) { return !nan && !lt(v) && !gt(v); };
      expect(x < number, lt, " < ");
      expect(number < x, gt, " > ");
      expect(x > number, gt, " > ");
      expect(x == number, eq, " == ");
      expect(number != x, [&](Wide v) { return !eq(v); }, " != ");
      expect(x <= number, [&](Wide v) { return lt(v) || eq(v); }, " <= ");
      expect(x >= number, [&](Wide v) { return gt(v) || eq(v); }, " >= ");
      expect(number <= x, [&](Wide v) { return gt(v) || eq(v); }, " >= ");
    };
    for (int64_t n : integers) check(n, [](Wide a, Wide b) { return a < b; });
    check(UINT64_MAX, [](Wide a, Wide b) { return a < b; });
    // long double holds every 64-bit integer.
    for (double n : reals)
      check(n, [](auto a, auto b) {
        return static_cast<long double>(a) < static_cast<long double>(b);
      });
  }
  EXPECT_TRUE((Tensor{true} < 1.5).item<bool>());
  EXPECT_FALSE((Tensor{true} == 5000000000).item<bool>());
}

TEST(Integers, OfU64AndSignedTypesAreComparedAsNumbers) {
  std::vector<Wide> a{-1, 0, 5, INT64_MAX, INT64_MIN},
      b{0, 5, INT64_MAX, Wide{INT64_MAX} + 1, UINT64_MAX};
  Tensor x = ints(a, DType::I64).unsqueeze(1), y = ints(b, DType::U64);
  std::vector<int> lt = (x < y).to_vector<int>(), gt = (y < x).to_vector<int>(),
                   eq = (x == y).to_vector<int>(), le = (x <= y).to_vector<int>(),
                   ge = (y <= x).to_vector<int>(), ne = (y != x).to_vector<int>();
  for (size_t i = 0; i < 25; ++i) {
    Wide p = a[i / 5], q = b[i % 5];
    EXPECT_EQ(lt[i], p < q);
    EXPECT_EQ(gt[i], q < p);
    EXPECT_EQ(eq[i], p == q);
    EXPECT_EQ(ne[i], p != q);
    EXPECT_EQ(le[i], p <= q);
    EXPECT_EQ(ge[i], q <= p);
  }
}

TEST(Integers, AreNeverCut) {
  Tensor i8 = Tensor{1, 2}.cast(DType::I8), u8 = Tensor{1, 2}.cast(DType::U8), i32{1, 2};
  const std::pair<std::function<void()>, const char*> calls[] = {
      {[&] { (void)Tensor::full({1}, 5000000000); }, "full: 5000000000 does not fit i32"},
      {[&] { (void)Tensor::full({1}, 128, DType::I8); }, "full: 128 does not fit i8"},
      {[&] { (void)Tensor::full({1}, -1, DType::U64); }, "full: -1 does not fit u64"},
      {[&] { (void)Tensor::full({1}, UINT64_MAX, DType::I64); },
       "full: 18446744073709551615 does not fit i64"},
      {[&] { (void)Tensor::full({1}, 1e30, DType::I64); }, "full: 1e+30 does not fit i64"},
      {[&] { (void)Tensor::full({1}, NAN, DType::I32); }, "full: nan does not fit i32"},
      {[&] { (void)Tensor(5000000000); }, "tensor: 5000000000 does not fit i32"},
      {[&] { (void)u8.full_like(256); }, "full_like: 256 does not fit u8"},
      {[&] { (void)(i32 == i32).where(5000000000, 0); }, "where: 5000000000 does not fit i32"},
      {[&] { (void)Tensor::arange(5e9 + 0, 5e9 + 4, 1, DType::I32); },
       "arange: 5000000000 does not fit i32"},
      {[&] { (void)Tensor::arange(5000000000, 5000000004); },
       "arange: 5000000000 does not fit i32"},
      {[&] { (void)Tensor::arange(0, 257, 1, DType::U8); }, "arange: 256 does not fit u8"},
      {[&] { (void)Tensor::linspace(0, 300, 4, DType::U8); }, "linspace: 300 does not fit u8"},
      {[&] { (void)Tensor::randint({2}, 0, 257, DType::U8); },
       "u8 does not hold the integers from 0 up"},
      {[&] { (void)Tensor::randperm(200, DType::I8); },
       "randperm: i8 does not hold the integers up to 199"},
      {[&] { (void)(u8 + 256); }, "add: 256 does not fit u8"},
      {[&] { (void)(u8 * -1); }, "mul: -1 does not fit u8"},
      {[&] { (void)u8.maximum(-1); }, "maximum: -1 does not fit u8"},
      {[&] { (void)i8.clamp(1000); }, "clamp: 1000 does not fit i8"},
      {[&] { (void)i8.clamp({}, -1000); }, "clamp: -1000 does not fit i8"},
      {[&] { i8.clone().assign(200); }, "assign: 200 does not fit i8"},
      {[&] { i8.clone().setitem({0}, 200); }, "setitem: 200 does not fit i8"},
      {[&] { (void)i8.pad({{1, 0}}, 200); }, "pad: 200 does not fit i8"},
      {[&] { (void)i8.masked_fill(i8 > 1, 200); }, "masked_fill: 200 does not fit i8"},
      {[&] { (void)i8.scatter(0, Tensor{0}, 200); }, "scatter: 200 does not fit i8"},
      {[&] { (void)i32.pow(-1); }, "pow: i32[2] to the power of -1 is no integer"},
  };
  for (const auto& [call, says] : calls) {
    std::string message = message_of(call);
    EXPECT_NE(message.find(says), std::string::npos) << message << "\n  expected: " << says;
  }
  EXPECT_EQ(i8.clamp(-1000, 1000).to_vector<int>(), (std::vector<int>{1, 2}));
  EXPECT_EQ(i8.clamp(-1000, 1).to_vector<int>(), (std::vector<int>{1, 1}));
  EXPECT_EQ(u8.clamp(-5).dtype(), DType::U8);
  EXPECT_EQ(Tensor::full({1}, UINT64_MAX, DType::U64).item<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(Tensor::full({1}, 2.75, DType::I32).item<int>(), 2);
  EXPECT_EQ(Tensor::full({1}, 1e19, DType::U64).item<uint64_t>(), 10000000000000000000u);
}

TEST(Integers, CountLongDims) {
  Tensor line = Tensor::arange(0, int64_t{1} << 32, 1, DType::I64);
  Tensor picked = line[Tensor{-1, 7, -2}];
  EXPECT_EQ(picked.to_vector<int64_t>(), (Int64s{4294967295, 7, 4294967294}));
}

TEST(Integers, FillLinesToTheEnds) {
  auto line = [](Scalar start, Scalar stop, Scalar step) {
    return Tensor::arange(start, stop, step, DType::I64).to_vector<int64_t>();
  };
  constexpr int64_t half = int64_t{1} << 62;
  EXPECT_EQ(line(INT64_MIN, INT64_MAX, half), (Int64s{INT64_MIN, -half, 0, half}));
  EXPECT_EQ(line(INT64_MAX, INT64_MIN, -half), (Int64s{INT64_MAX, half - 1, -1, -half - 1}));
  EXPECT_EQ(line(INT64_MAX - 1, INT64_MAX, 5), (Int64s{INT64_MAX - 1}));
  EXPECT_EQ(line(3, 3, 1), Int64s{});
  EXPECT_EQ(line(3, -3, 1), Int64s{});
  EXPECT_EQ(line(7, 0, -3), (Int64s{7, 4, 1}));
  EXPECT_EQ(Tensor::arange(UINT64_MAX - 2, UINT64_MAX, 1, DType::U64).to_vector<uint64_t>(),
            (std::vector<uint64_t>{UINT64_MAX - 2, UINT64_MAX - 1}));
  EXPECT_EQ(Tensor::arange(128, 0, 1, DType::I8).numel(), 0) << "an empty line has no ends";
  EXPECT_NE(message_of([] {
              (void)Tensor::arange(INT64_MIN, INT64_MAX, 1, DType::I64);
            }).find("is too large"),
            std::string::npos);
}

// base^n modulo 2^64, and its whole part where n < 0.
uint64_t integer_power(int64_t base, int64_t n) {
  if (n < 0) return base == 1 ? 1 : base == -1 ? (n % 2 ? -1 : 1) : 0;
  uint64_t out = 1, square = uint64_t(base);
  for (uint64_t left = uint64_t(n); left; left >>= 1, square *= square)
    if (left & 1) out *= square;
  return out;
}

TEST(Integers, KeepTheirTypeInPowers) {
  for (DType type : {DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U64}) {
    Tensor x = Tensor{2, 3}.cast(type), y = Tensor{3, 1}.cast(type);
    EXPECT_EQ(x.pow(y).dtype(), type);
    EXPECT_EQ(x.pow(y).to_vector<int>(), (std::vector<int>{8, 3}));
  }
}

TEST(Integers, HavePowersByAllBitsOfTheExponent) {
  for (DType dtype : kInts) {
    auto [low, high] = range_of(dtype);
    bool is_signed = low < 0;
    std::vector<Wide> bases{0, 1, 2, 3, 7, high, low, high - 1},
        exponents{0, 1, 2, 3, 63, 64, 65, 100, high};
    if (is_signed)
      bases.insert(bases.end(), {-1, -2, -3}),
          exponents.insert(exponents.end(), {-1, -2, -63, low});
    Tensor x = ints(bases, dtype), n = ints(exponents, dtype);
    std::vector<uint64_t> got = x.unsqueeze(1).pow(n).cast(DType::U64).to_vector<uint64_t>();
    for (size_t i = 0; i < got.size(); ++i) {
      Wide base = bases[i / exponents.size()], power = exponents[i % exponents.size()];
      if (dtype == DType::U64 && power > INT64_MAX) continue;  // the oracle's exponent is signed
      uint64_t expected = ints({Wide(integer_power(int64_t(base), int64_t(power)))}, dtype)
                              .cast(DType::U64)
                              .item<uint64_t>();
      EXPECT_EQ(got[i], expected) << name(dtype) << ": " << int64_t(base) << "^" << int64_t(power);
    }
    for (int64_t power : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{1000000001}, INT64_MAX}) {
      std::vector<uint64_t> by_number = x.pow(power).cast(DType::U64).to_vector<uint64_t>();
      for (size_t i = 0; i < bases.size(); ++i) {
        EXPECT_EQ(by_number[i], ints({Wide(integer_power(int64_t(bases[i]), power))}, dtype)
                                    .cast(DType::U64)
                                    .item<uint64_t>())
            << name(dtype) << ": " << int64_t(bases[i]) << "^" << power;
      }
    }
  }
  EXPECT_EQ((Tensor{true, false}).pow(3).to_vector<int>(), (std::vector<int>{1, 0}));
  EXPECT_EQ((Tensor{true, false}).pow(3).dtype(), DType::I32);
  EXPECT_EQ(pow(2, Tensor{0, 5, 31}).to_vector<int64_t>(), (Int64s{1, 32, INT32_MIN}));
}

// --- powers of floats ----------------------------------------------------------------------------

const Doubles kSpecial{0.0,  -0.0, 1,  -1, kInf, -kInf, kNan, 2,    -2,  0.5,
                       -0.5, 3,    -3, 4,  1.5,  -1.5,  100,  -100, 101, 0.25};

// Equal, NaN with NaN, zeros with their signs, up to rounding.
void expect_same(double got, double expected, double tolerance, const std::string& what) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << what << ": " << got;
  } else if (std::isinf(expected) || expected == 0) {
    EXPECT_EQ(got, expected) << what;
    EXPECT_EQ(std::signbit(got), std::signbit(expected)) << what;
  } else {
    EXPECT_NEAR(got, expected, tolerance * std::abs(expected)) << what;
  }
}

struct Precision {
  DType dtype;
  double relative;  // of a power with an exponent near 100
};
constexpr Precision kPrecisions[] = {
    {DType::F64, 1e-13}, {DType::F32, 2e-5}, {DType::F16, 1e-3}, {DType::BF16, 8e-3}};

double in_type(double x, DType dtype) { return of({x}, dtype).item<double>(); }
// Numbers that the type holds, but no subnormal ones, which devices may flush.
bool is_plain(double x, DType dtype) {
  return std::isnan(x) || std::isinf(x) || x == 0 ||
         std::abs(x) > (dtype == DType::F16 ? 1e-4 : 1e-37);
}

TEST(Powers, OfSpecialValuesAreThoseOfTheStandard) {
  for (auto [dtype, relative] : kPrecisions) {
    Tensor x = of(kSpecial, dtype);
    size_t n = kSpecial.size();
    Doubles got = x.unsqueeze(1).pow(x).to_vector<double>();
    for (size_t i = 0; i < n * n; ++i) {
      double base = kSpecial[i / n], exponent = kSpecial[i % n],
             expected = std::pow(base, exponent);
      if (!is_plain(expected, dtype) && expected != 0) continue;
      std::string what =
          std::string(name(dtype)) + ": " + std::to_string(base) + "^" + std::to_string(exponent);
      expect_same(got[i], in_type(expected, dtype), relative, what);
    }
    for (double exponent : kSpecial) {
      Doubles by_number = x.pow(exponent).to_vector<double>();
      for (size_t i = 0; i < n; ++i) {
        double expected = std::pow(kSpecial[i], exponent);
        if (!is_plain(expected, dtype) && expected != 0) continue;
        if (exponent == 0.5 && kSpecial[i] == 0)
          expected = kSpecial[i];  // the square root keeps the sign
        std::string what = std::string(name(dtype)) + ": " + std::to_string(kSpecial[i]) +
                           "^number " + std::to_string(exponent);
        expect_same(by_number[i], in_type(expected, dtype), relative, what);
      }
    }
    for (double base : kSpecial) {
      Doubles of_number = pow(base, x).to_vector<double>();
      for (size_t i = 0; i < n; ++i) {
        double expected = std::pow(base, kSpecial[i]);
        if (!is_plain(expected, dtype) && expected != 0) continue;
        std::string what = std::string(name(dtype)) + ": number " + std::to_string(base) + "^" +
                           std::to_string(kSpecial[i]);
        expect_same(of_number[i], in_type(expected, dtype), relative, what);
      }
    }
  }
}

TEST(Powers, HaveTheSlopesOfTheirFormula) {
  for (auto [dtype, relative] : kPrecisions) {
    if (itemsize(dtype) == 2) continue;  // their slopes are those of f32, rounded
    size_t n = kSpecial.size();
    Tensor x = of(kSpecial, dtype).unsqueeze(1).expand({-1, int64_t(n)}).clone().realize(),
           y = of(kSpecial, dtype).unsqueeze(0).expand({int64_t(n), -1}).clone().realize();
    std::vector<Tensor> slopes = x.pow(y).sum().gradient({x, y});
    Doubles of_base = slopes[0].to_vector<double>(), of_exponent = slopes[1].to_vector<double>();
    auto base_slope = [](double a, double b) { return b == 0 ? 0 : b * std::pow(a, b - 1); };
    for (size_t i = 0; i < n * n; ++i) {
      double a = kSpecial[i / n], b = kSpecial[i % n];
      std::string what =
          std::string(name(dtype)) + ": slope of " + std::to_string(a) + "^" + std::to_string(b);
      double expected = base_slope(a, b);
      if (is_plain(expected, dtype))
        expect_same(of_base[i], in_type(expected, dtype), relative, what);
      expected = a == 0 && b >= 0 ? 0 : std::pow(a, b) * std::log(a);
      if (is_plain(expected, dtype))
        expect_same(of_exponent[i], in_type(expected, dtype), relative, what + " by the exponent");
    }
    for (double b : kSpecial) {
      if (b == 0) continue;  // a constant
      Tensor line = of(kSpecial, dtype);
      Doubles got = line.pow(b).sum().gradient({line})[0].to_vector<double>();
      for (size_t i = 0; i < n; ++i) {
        double a = kSpecial[i], expected = base_slope(a, b);
        if (b == 0.5 && (a == 0 || a == -kInf)) continue;  // of the square root
        // -0: products of even slopes of zeros may have either sign.
        if (expected == 0) {
          EXPECT_EQ(got[i], 0) << a << "^" << b;
        } else if (is_plain(expected, dtype)) {
          expect_same(got[i], in_type(expected, dtype), relative,
                      std::string(name(dtype)) + ": slope of " + std::to_string(a) + "^number " +
                          std::to_string(b));
        }
      }
    }
  }
}

// --- bits, types ---------------------------------------------------------------------------------

TEST(Bits, OfOneSizeAreReadAsAnother) {
  const DType all[] = {DType::I8,  DType::U8,  DType::I16, DType::U16, DType::F16, DType::BF16,
                       DType::I32, DType::U32, DType::F32, DType::I64, DType::U64, DType::F64};
  Tensor bytes = (Tensor::arange(32) * 37 % 251).cast(DType::U8).reshape({2, 16}).realize();
  std::vector<std::byte> expected = bytes.data();
  for (DType from : all) {
    Tensor x = bytes.bitcast(from);
    EXPECT_EQ(x.shape(), (Dims{2, int64_t(16 / itemsize(from))}));
    EXPECT_EQ(x.data(), expected) << name(from);
    for (DType to : all) {
      Tensor y = x.bitcast(to);
      EXPECT_EQ(y.dtype(), to);
      EXPECT_EQ(y.shape(), (Dims{2, int64_t(16 / itemsize(to))}));
      EXPECT_EQ(y.data(), expected) << name(from) << " as " << name(to);
    }
  }
  // Values may be computed, too.
  Tensor a = Tensor{3, -7, 11, 120}.cast(DType::I8), product = a * a;
  EXPECT_EQ(product.bitcast(DType::I16).data(), product.data());
  EXPECT_EQ(product.bitcast(DType::BF16).data(), product.data());
  EXPECT_EQ(product.bitcast(DType::F32).data(), product.data());
  EXPECT_EQ((Tensor{true, false}).bitcast(DType::U16).to_vector<int>(), (std::vector<int>{1}));
  EXPECT_EQ((Tensor{256, 0}).bitcast(DType::Bool).to_vector<int>(),
            (std::vector<int>{0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_NE(message_of([] { (void)Tensor(3).bitcast(DType::I64); }).find("no dim"),
            std::string::npos);
}

TEST(Types, OfOffsetsAndOfNothingAreRefused) {
  for (DType dtype : {DType::Index, DType(18), DType(200)}) {
    const std::vector<std::function<void()>> calls = {
        [=] { (void)Tensor::zeros({3}, dtype); },
        [=] { (void)Tensor::full({3}, 1.5, dtype); },
        [=] { (void)Tensor::empty({3}, dtype); },
        [=] { (void)Tensor::ones({3}).full_like(1, dtype); },
        [=] { (void)Tensor::arange(3, dtype); },
        [=] { (void)Tensor::arange(0.0, 3, 1, dtype); },
        [=] { (void)Tensor::linspace(0, 1, 3, dtype); },
        [=] { (void)Tensor::eye(3, {}, dtype); },
        [=] { (void)Tensor::rand({3}, dtype); },
        [=] { (void)Tensor::randn({3}, dtype); },
        [=] { (void)Tensor::uniform({3}, 0, 1, dtype); },
        [=] { (void)Tensor::randint({3}, 0, 5, dtype); },
        [=] { (void)Tensor::randperm(3, dtype); },
        [=] { (void)Tensor::ones({3}).rand_like(dtype); },
        [=] { (void)Tensor::ones({3}).cast(dtype); },
        [=] { (void)Tensor{1, 2}.cast(dtype); },
        [=] { (void)Tensor::ones({4}).bitcast(dtype); },
        [=] { (void)Tensor::ones({3}).sum({}, false, dtype); },
        [=] { (void)Tensor::ones({3}).prod({}, false, dtype); },
        [=] { (void)Tensor::ones({3}).softmax(0, dtype); },
        [=] { (void)Tensor::ones({3, 3}).matmul(Tensor::ones({3, 3}), dtype); },
        [=] { (void)Tensor::ones({3, 3}).linear(Tensor::ones({3, 3}), {}, dtype); },
        [=] { (void)Tensor::einsum("ij->i", {Tensor::ones({3, 3})}, dtype); },
        [=] { (void)Tensor::einsum("i,i->", {Tensor::ones({3}), Tensor::ones({3})}, dtype); },
        [=] {
          (void)Tensor::ones({1, 1, 3, 3}).conv2d(Tensor::ones({1, 1, 3, 3}), {}, {.dtype = dtype});
        },
        [=] { (void)Tensor(std::span<const std::byte>(), {0}, dtype); },
        [=] { set_default_float(dtype); },
    };
    for (size_t i = 0; i < calls.size(); ++i)
      EXPECT_THROW(calls[i](), UserError) << "call " << i << " with type " << int(dtype);
  }
  EXPECT_EQ(default_float(), DType::F32);
}

// A convolution's padding, and the gaps between the elements of a transposed one, are not there: an
// infinite weight meets the elements that it covers, and no 0 of a padding.
TEST(Infinities, OfConvolutionsMeetNoPadding) {
  const int64_t h = 7, channels = 16;
  std::vector<float> taps(9, 1);
  taps[0] = std::numeric_limits<float>::infinity();
  for (const std::string libraries : {"1", "0"}) {
    // cuDNN multiplies padding as zeros.
    if (libraries == "1" && device_kind() == "CUDA") continue;
    ::setenv("TS_LIBRARIES", libraries.c_str(), 1);
    reload_options();
    Tensor w = Tensor(taps, {1, 1, 3, 3}).expand({channels, channels, 3, 3}).contiguous();
    Tensor x = Tensor::full({2, channels, h, h}, 0.5).contiguous().realize().is_param_();
    w.realize().is_param_();
    for (int64_t stride : {1, 2}) {
      Tensor y = x.conv2d(w, {}, {.stride = {stride}, .padding = {1}});
      const int64_t out = y.size(2);
      const std::vector<float> forward = y[{0, 0}].to_vector<float>();
      const std::vector<float> back = y.sum().gradient({x})[0][{0, 0}].to_vector<float>();
      // Which elements the infinite tap, at the upper left of each window, reads.
      std::vector<bool> read(size_t(h * h));
      for (int64_t i = 0; i < out * out; ++i) {
        const int64_t row = i / out * stride - 1, column = i % out * stride - 1;
        const bool inside = row >= 0 && column >= 0;
        if (inside) read[size_t(row * h + column)] = true;
        EXPECT_EQ(std::isinf(forward[size_t(i)]), inside) << libraries << " " << stride << " " << i;
        EXPECT_FALSE(std::isnan(forward[size_t(i)])) << libraries << " " << stride << " " << i;
      }
      for (size_t i = 0; i < back.size(); ++i) {
        EXPECT_FALSE(std::isnan(back[i])) << libraries << " " << stride << " " << i;
        EXPECT_EQ(std::isinf(back[i]), read[i]) << libraries << " " << stride << " " << i;
      }
      // An infinite gradient of the first window, of which the upper and left taps read padding.
      std::vector<float> ones(size_t(y.numel()), 1);
      for (size_t i = 0; i < ones.size(); i += size_t(out * out))
        ones[i] = std::numeric_limits<float>::infinity();
      Tensor weighted = (y * Tensor(ones, y.shape())).sum();
      const std::vector<float> slopes = weighted.gradient({w})[0][{0, 0}].to_vector<float>();
      for (size_t i = 0; i < 9; ++i) {
        EXPECT_FALSE(std::isnan(slopes[i])) << libraries << " " << stride << " " << i;
        EXPECT_EQ(std::isinf(slopes[i]), i / 3 > 0 && i % 3 > 0) << libraries << " " << i;
      }
    }
  }
  ::unsetenv("TS_LIBRARIES");
  reload_options();
}

// As fmod of C, and with the divisor's sign, as Python's: for quotients of any length.
TEST(Rests, AreExact) {
  const Doubles many = {1e30, -7e25, 16777217.5, 1.0, 5.5, -5.5, 3e38, 1e-44, -1e-40, 0.0, 9e15, 1};
  const Doubles by = {3.0, 0.1, -0.3, 1e-45, 3e-44, -1e-39, 2.5, 1e38, INFINITY, -INFINITY, 0.0};
  for (DType type : {DType::F32, DType::F64}) {
    Tensor x = Tensor(many).cast(type).realize();
    const Doubles dividends = x.cast(DType::F64).to_vector<double>();
    for (double d : by) {
      Tensor y = Tensor(Doubles{d}).cast(type).realize();
      const double divisor = y.cast(DType::F64).item<double>();
      const Doubles rests = x.fmod(y).cast(DType::F64).to_vector<double>();
      const Doubles mods = x.mod(y).cast(DType::F64).to_vector<double>();
      const Doubles times = x.floor_div(y).cast(DType::F64).to_vector<double>();
      for (size_t i = 0; i < many.size(); ++i) {
        const double rest = std::fmod(dividends[i], divisor);
        const bool apart = rest != 0 && (rest < 0) != (divisor < 0);
        if (std::isnan(rest)) {
          EXPECT_TRUE(std::isnan(rests[i]) && std::isnan(mods[i])) << many[i] << " by " << d;
          continue;
        }
        EXPECT_EQ(rests[i], rest) << many[i] << " by " << d;
        EXPECT_EQ(std::signbit(rests[i]), std::signbit(rest)) << many[i] << " by " << d;
        const double sum = rest + divisor;
        const double rounded = type == DType::F32 ? double(float(sum)) : sum;
        EXPECT_EQ(mods[i], apart ? rounded : rest) << many[i] << " by " << d;
        if (std::abs(times[i]) < 1e6 && std::isfinite(divisor)) {
          const double left = std::fma(-times[i], divisor, dividends[i]);
          EXPECT_TRUE(divisor > 0 ? left >= 0 && left <= divisor : left <= 0 && left >= divisor)
              << many[i] << " by " << d << ": " << times[i];
        }
      }
    }
  }
  EXPECT_EQ(Tensor(Doubles{1.0}).floor_div(0.1).item<double>(), 9);  // 1 / 0.1 rounds to 10
  EXPECT_EQ(Tensor(Doubles{-1.0}).floor_div(INFINITY).item<double>(), -1);
  EXPECT_EQ(Tensor(Doubles{-1.0}).mod(INFINITY).item<double>(), INFINITY);
  EXPECT_EQ(Tensor(Doubles{1.0}).floor_div(0.0).item<double>(), INFINITY);
}

// A constant is the value of its type from the start, not the number that it was made from.
TEST(Types, OfConstantsRoundTheirNumber) {
  const double f32 = 0.1f, bf16 = 0x1.9ap-4, f16 = 0x1.998p-4;
  EXPECT_EQ(Tensor::full({2}, 0.1).cast(DType::F64).to_vector<double>(), Doubles(2, f32));
  EXPECT_EQ(Tensor::full({1}, 0.1, DType::BF16).cast(DType::F64).item<double>(), bf16);
  EXPECT_EQ(Tensor::full({1}, 0.1, DType::F16).cast(DType::F32).item<float>(), f16);
  Tensor stored(std::vector<float>{0.1f});
  EXPECT_TRUE(Tensor::full({1}, 0.1).cast(DType::F64).eq(stored.cast(DType::F64)).item<bool>());
  // Just above the middle of two bf16, which f32 does not tell from the middle.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(Tensor::full({1}, above, DType::BF16).cast(DType::F64).item<double>(), 1 + 0x1p-7);
  Tensor doubles = Tensor::full({1}, above, DType::F64);
  EXPECT_EQ(doubles.cast(DType::BF16).cast(DType::F64).item<double>(), 1 + 0x1p-7);
  EXPECT_EQ(doubles.clone().realize().cast(DType::BF16).cast(DType::F64).item<double>(),
            1 + 0x1p-7);
}

TEST(Types, OfTrianglesStay) {
  for (DType dtype : {DType::Bool, DType::U8, DType::I64, DType::BF16, DType::F64}) {
    Tensor x = Tensor::ones({2, 3}, dtype);
    EXPECT_EQ(x.triu().dtype(), dtype);
    EXPECT_EQ(x.tril().dtype(), dtype);
    EXPECT_EQ(x.triu(1).to_vector<int>(), (std::vector<int>{0, 1, 1, 0, 0, 1}));
    EXPECT_EQ(x.tril(-1).to_vector<int>(), (std::vector<int>{0, 0, 0, 1, 0, 0}));
  }
}

TEST(Types, OfFormulasAreThoseAskedFor) {
  Tensor a = Tensor{{100, 100, 100}, {1, 2, 3}}.cast(DType::I8), b = a.permute({1, 0});
  struct Row {
    const char* formula;
    std::vector<Tensor> operands;
    std::vector<double> expected;
  };
  const Row rows[] = {
      {"ij->i", {a}, {300, 6}},
      {"ij->ji", {a}, {100, 1, 100, 2, 100, 3}},
      {"ij->", {a}, {306}},
      {"ij,jk->ik", {a, b}, {30000, 600, 600, 14}},
      {"ij,ij->ij", {a, a}, {10000, 10000, 10000, 1, 4, 9}},
      {"ij,kj,k->i", {a, a, a[{Slice(), 1}]}, {3001200, 60028}},
  };
  for (DType dtype : {DType::I32, DType::I64, DType::F32, DType::F64}) {
    for (const Row& row : rows) {
      Tensor got = Tensor::einsum(row.formula, row.operands, dtype);
      EXPECT_EQ(got.dtype(), dtype) << row.formula;
      EXPECT_EQ(got.to_vector<double>(), row.expected) << row.formula << " in " << name(dtype);
    }
  }
  // Long sums of 16-bit floats are sums in f32 whatever the result is.
  Tensor ones = Tensor::ones({5000}, DType::BF16);
  EXPECT_EQ(Tensor::einsum("i->", {ones}, DType::BF16).item<double>(), 4992);
  EXPECT_EQ(Tensor::einsum("i->", {ones}, DType::F32).item<double>(), 5000);
}

// A sum of products is a sum: nothing of it wraps at the width of its operands.
TEST(Einsum, OfSmallIntegersIsAsWideAsTheirSum) {
  for (DType type : {DType::I8, DType::I16, DType::U8, DType::U16, DType::Bool}) {
    const int top = type == DType::Bool ? 1 : type == DType::I8 ? 100 : 200;
    Tensor x = Tensor({top, top, top}).cast(type);
    const DType wide = x.sum().dtype();
    for (const char* formula : {"i,i->", "i,i,i->", "i->", "i,j->ij", "i,i", "i->i"}) {
      const std::string text = formula;
      const auto operands = size_t(std::ranges::count(text.substr(0, text.find('-')), 'i')) +
                            size_t(std::ranges::count(text.substr(0, text.find('-')), 'j'));
      Tensor result = Tensor::einsum(text, std::vector<Tensor>(operands, x));
      EXPECT_EQ(result.dtype(), wide) << name(type) << " " << text;
      const bool summed = text != "i,j->ij" && text != "i->i";
      EXPECT_EQ(result.cast(DType::F64).max().item<double>(),
                std::pow(top, double(operands)) * (summed ? 3 : 1))
          << name(type) << " " << text;
    }
  }
  Tensor wide = Tensor({3, 4}).cast(DType::I64);
  EXPECT_EQ(Tensor::einsum("i,i->", {wide, wide}).dtype(), DType::I64);
  EXPECT_EQ(Tensor::einsum("i,i->", {wide, wide}, DType::I8).dtype(), DType::I8);
}

// Kernels know what counts are and compute with few bits where these are enough: a product may need more.
TEST(Numbers, ProductsOfCountsAreWide) {
  const Tensor x = Tensor::arange(70000, DType::I64);
  EXPECT_EQ((x * x).max().item<int64_t>(), int64_t{69999} * 69999);
  EXPECT_EQ((x * x).realize()[69998].item<int64_t>(), int64_t{69998} * 69998);
  const Tensor y = Tensor::arange(8, DType::I64) + 60000;
  std::vector<int64_t> expected;
  for (int64_t i = 60000; i < 60008; ++i) expected.push_back(i * i);
  EXPECT_EQ((y * y).to_vector<int64_t>(), expected);
  const Tensor three = Tensor::arange(4, DType::I64), sixty = Tensor::full({4}, 60, DType::I64);
  EXPECT_EQ(pow(three, sixty.clone().realize()).to_vector<int64_t>()[3],
            int64_t(12157665459056928801ULL * 3486784401ULL));  // 3^40 and 3^20, modulo 2^64
}

// A library's kernels for some processors crash for just 63 terms.
TEST(Numbers, ProductsOfAnyCountOfTerms) {
  for (int64_t k : {1, 2, 31, 33, 62, 63, 64, 65, 127}) {
    const Tensor a = (Tensor::arange(85 * k) * 37 % 23 - 11).reshape({85, k}).cast(DType::BF16),
                 b = (Tensor::arange(k * 65) * 29 % 19 - 9).reshape({k, 65}).cast(DType::BF16);
    const Tensor got = a.realize().matmul(b.realize(), DType::F32);
    const Tensor expected = a.to_long().unsqueeze(2).mul(b.to_long().unsqueeze(0)).sum(1);
    EXPECT_EQ((got.to_long() != expected).sum().item<int64_t>(), 0) << k;
  }
}

// If an index is made of counts, only the numbers matter, and these wrap as their types do.
TEST(Numbers, PlacesOfFewBitsWrap) {
  const Tensor x = Tensor::arange(1000, DType::I32).contiguous().realize(),
               counts = Tensor::arange(300, DType::I32);
  const auto expect = [&](const Tensor& index, const std::function<int64_t(int64_t)>& place) {
    const std::vector<int64_t> got = x.gather(0, index).to_long().to_vector<int64_t>();
    for (int64_t i = 0; i < 300; ++i) ASSERT_EQ(got[size_t(i)], place(i)) << i;
  };
  expect(counts.cast(DType::U8).cast(DType::I64), [](int64_t i) { return int64_t(uint8_t(i)); });
  expect((counts.cast(DType::U8) * 3).cast(DType::I32),
         [](int64_t i) { return int64_t(uint8_t(3 * i)); });
  expect(counts.cast(DType::I8).cast(DType::I64) + 200, [](int64_t i) { return 200 + int8_t(i); });
  expect((counts - 299).cast(DType::U8).cast(DType::I64),
         [](int64_t i) { return int64_t(uint8_t(i - 299)); });
  expect((counts.cast(DType::U16) * 256).cast(DType::I64).floor_div(100),
         [](int64_t i) { return int64_t(uint16_t(i * 256)) / 100; });
  expect(counts * 3, [](int64_t i) { return 3 * i; });
}

// LLVM 19 finds no instructions for this kernel with vectors as wide as those of AVX-512.
TEST(Numbers, BitsOfTwoWidthsSideBySide) {
  const std::vector<float> values{1.7320889F, 1.8519675F};
  const Tensor bits = Tensor(values, {2, 1, 1, 1}).bitcast(DType::U32);
  const Tensor low = bits.cast(DType::I16);
  std::vector<int64_t> expected;
  for (bool narrow : {true, true, false, false}) {
    for (float value : values) {
      const auto all = std::bit_cast<uint32_t>(value);
      expected.push_back(narrow ? int64_t(int16_t(all)) : int64_t(all));
    }
  }
  EXPECT_EQ(low.stack({low, bits, bits}, 0).to_vector<int64_t>(), expected);
}

// -0 + 0 is 0, and -0 - 0 is -0, whether a zero is known beforehand or not.
TEST(Zeros, KeepTheirSigns) {
  const Tensor x = Tensor({-0.0, 0.0}).realize(), zero = Tensor({0.0}).realize();
  const Doubles plus{kInf, kInf}, minus{-kInf, kInf};
  for (const Tensor& y : {x + 0, 0 + x, x + x.zeros_like(), x + zero, x - -zero})
    EXPECT_EQ((1 / y).to_vector<double>(), plus);
  for (const Tensor& y : {x - 0, x - x.zeros_like(), x - zero, x + -zero, x + -x.zeros_like()})
    EXPECT_EQ((1 / y).to_vector<double>(), minus);
}

}  // namespace
}  // namespace tinyshard::numbers_test
