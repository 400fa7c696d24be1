// Every 16-bit value, against arithmetic written from the definition of the formats.
#include "core/dtype/half.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::half_test {
namespace {

// The value of a format with `exponent` and `mantissa` bits, as a double.
double decode(uint16_t bits, int exponent, int mantissa) {
  int bias = (1 << (exponent - 1)) - 1;
  int e = (bits >> mantissa) & ((1 << exponent) - 1), m = bits & ((1 << mantissa) - 1);
  double sign = bits & 0x8000 ? -1 : 1;
  if (e == (1 << exponent) - 1) {
    return m ? std::numeric_limits<double>::quiet_NaN()
             : sign * std::numeric_limits<double>::infinity();
  }
  double fraction = std::ldexp(m, -mantissa);
  return sign * (e == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, e - bias));
}

template <class ToFloat>
void check_decoding(ToFloat to_float, int exponent, int mantissa) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    double expected = decode(static_cast<uint16_t>(bits), exponent, mantissa);
    float actual = to_float(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << std::hex << bits;
    } else {
      ASSERT_EQ(static_cast<double>(actual), expected) << std::hex << bits;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << std::hex << bits;
    }
  }
}

// Between each value and the next: below the middle, at the middle (to even), above the middle.
template <class ToFloat, class FromFloat>
void check_rounding(ToFloat to_float, FromFloat from_float, uint16_t infinity) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t low = 0; low < infinity; ++low) {
      auto a = static_cast<uint16_t>(low | sign), b = static_cast<uint16_t>((low + 1) | sign);
      double from = to_float(a);
      // The step after the largest finite value is as wide as the one before.
      double next = low + 1 == infinity
                        ? 2 * from - static_cast<double>(to_float(static_cast<uint16_t>(a - 1)))
                        : static_cast<double>(to_float(b));
      double middle = (from + next) / 2;  // exact: both have few digits
      ASSERT_EQ(from_float(static_cast<float>(from)), a);
      float half = static_cast<float>(middle);
      if (static_cast<double>(half) != middle) continue;  // below the smallest f32
      float away =
          sign ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
      ASSERT_EQ(from_float(half), low % 2 == 0 ? a : b) << std::hex << low;
      ASSERT_EQ(from_float(std::nextafterf(half, 0)), a) << std::hex << low;
      ASSERT_EQ(from_float(std::nextafterf(half, away)), b) << std::hex << low;
    }
  }
}

TEST(Half, F16Decodes) { check_decoding(f16_to_f32, 5, 10); }
TEST(Half, BF16Decodes) { check_decoding(bf16_to_f32, 8, 7); }
TEST(Half, F16RoundsToNearestEven) { check_rounding(f16_to_f32, f32_to_f16, 0x7c00); }
TEST(Half, BF16RoundsToNearestEven) { check_rounding(bf16_to_f32, f32_to_bf16, 0x7f80); }

// Numbers that f32 takes for the middle of two 16-bit floats, though they are not.
TEST(Half, DoublesAreRoundedOnce) {
  EXPECT_EQ(f64_to_bf16(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(f64_to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
  EXPECT_EQ(f64_to_bf16(1 + 0x1.8p-7), 0x3f82);
  EXPECT_EQ(f64_to_bf16(1 + 0x1.8p-7 - 0x1p-40), 0x3f81);
  EXPECT_EQ(f64_to_f16(-1 - 0x1p-11 - 0x1p-50), 0xbc01);
  EXPECT_EQ(f64_to_f16(0x1p-25 + 0x1p-70), 0x0001);
  EXPECT_EQ(f64_to_f16(0x1p-25), 0x0000);
  EXPECT_EQ(f64_to_f16(65520 - 0x1p-30), 0x7bff);
  EXPECT_EQ(f64_to_f16(-1e-320), 0x8000);
  EXPECT_EQ(f64_to_bf16(0x1.fep127 + 0x1p118), 0x7f7f);
  EXPECT_EQ(f64_to_bf16(0x1.ffp127 - 0x1p80), 0x7f7f);
  EXPECT_EQ(f64_to_bf16(-1e300), 0xff80);
  EXPECT_EQ(rounded_integer(DType::BF16, int64_t{(1 << 30) + (1 << 22) + 1}),
            (1 << 30) + (1 << 23));
  EXPECT_EQ(rounded_integer(DType::BF16, ~uint64_t{0} - 0x7fffffffffffff), 0x1p64);
  EXPECT_EQ(rounded_integer(DType::BF16, ~uint64_t{0} - 0x80000000000000), 0x1.fep63);
  EXPECT_EQ(rounded_integer(DType::BF16, -(int64_t{0x101} << 54) - 1), -0x1.02p62);
}

TEST(Half, RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    auto h = static_cast<uint16_t>(bits);
    if (std::isnan(f16_to_f32(h))) {
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f16_to_f32(h))))) << std::hex << bits;
    } else {
      ASSERT_EQ(f32_to_f16(f16_to_f32(h)), h);
    }
    if (std::isnan(bf16_to_f32(h))) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(bf16_to_f32(h))))) << std::hex << bits;
    } else {
      ASSERT_EQ(f32_to_bf16(bf16_to_f32(h)), h);
    }
  }
}

TEST(Half, Extremes) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(65504), 0x7bff);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520), 0x7c00);
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-inf), 0xfc00);
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(-0x1p-26f), 0x8000);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(inf), 0x7f80);
  // A NaN whose payload is only in the lower half must not become infinity.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace tinyshard::half_test
