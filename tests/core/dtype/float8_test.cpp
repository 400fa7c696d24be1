// All codes of the four floats of 8 bits, against arithmetic written from their definitions.
#include "core/dtype/float8.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype/half.h"

namespace tinyshard::float8_test {
namespace {

struct Definition {
  DType type;
  int mantissa, bias;
  bool fnuz;
  double largest, step;  // and what lies between it and the one before
};
constexpr Definition kTypes[] = {{DType::F8E4M3FN, 3, 7, false, 448, 32},
                                 {DType::F8E5M2, 2, 15, false, 57344, 8192},
                                 {DType::F8E4M3FNUZ, 3, 8, true, 240, 16},
                                 {DType::F8E5M2FNUZ, 2, 16, true, 57344, 8192}};

double decode(const Definition& d, int code) {
  const int exponent = (code & 127) >> d.mantissa, fraction = code & ((1 << d.mantissa) - 1);
  const double sign = code & 128 ? -1 : 1;
  if (d.fnuz ? code == 128 : d.mantissa == 3 && (code & 127) == 127) return NAN;
  if (!d.fnuz && d.mantissa == 2 && exponent == 31) return fraction ? NAN : sign * INFINITY;
  const int whole = exponent > 0 ? (1 << d.mantissa) + fraction : fraction;
  return sign * std::ldexp(whole, std::max(exponent, 1) - d.bias - d.mantissa);
}

TEST(Float8, EveryCodeIsItsValueAndComesBack) {
  for (const Definition& d : kTypes) {
    const Float8Format format = float8_format(d.type);
    for (int code = 0; code < 256; ++code) {
      const double expected = decode(d, code);
      const float got = float8_to_f32(format, uint32_t(code));
      ASSERT_EQ(std::isnan(got), std::isnan(expected)) << name(d.type) << " " << code;
      if (!std::isnan(expected)) {
        ASSERT_EQ(double(got), expected) << name(d.type) << " " << code;
        ASSERT_EQ(std::signbit(got), std::signbit(expected)) << name(d.type) << " " << code;
      }
      ASSERT_EQ(f32_to_float8(format, got), code) << name(d.type);
    }
  }
}

TEST(Float8, RoundsToTheNearestEven) {
  for (const Definition& d : kTypes) {
    const Float8Format format = float8_format(d.type);
    for (int code = 0; decode(d, code) < d.largest; ++code) {
      const double low = decode(d, code), high = decode(d, code + 1), middle = (low + high) / 2;
      const int even = code % 2 == 0 ? code : code + 1;
      for (const int sign : {0, 128}) {
        auto coded = [&](int c) { return d.fnuz && c == 0 ? 0 : c | sign; };
        auto round = [&](double x) {
          return int(f32_to_float8(format, float(sign != 0 ? -x : x)));
        };
        ASSERT_EQ(round(middle), coded(even)) << name(d.type) << " " << middle;
        ASSERT_EQ(round(double(std::nextafter(float(middle), 0.f))), coded(code));
        ASSERT_EQ(round(double(std::nextafter(float(middle), INFINITY))), coded(code + 1));
        // 2^-40 beyond the middle, which f32 does not hold.
        const double beyond = middle * (1 + 0x1p-40);
        ASSERT_EQ(int(f64_to_narrow(d.type, sign != 0 ? -beyond : beyond)), coded(code + 1));
      }
    }
  }
}

TEST(Float8, WhatIsTooLargeIsInfinityOrNan) {
  for (const Definition& d : kTypes) {
    const Float8Format format = float8_format(d.type);
    auto value = [&](double x) { return decode(d, f32_to_float8(format, float(x))); };
    EXPECT_EQ(value(d.largest + d.step / 2 * 0.99), d.largest) << name(d.type);
    for (const double x : {d.largest + d.step / 2 * 1.01, 1e6, 1e38, double(INFINITY)}) {
      EXPECT_EQ(std::isinf(value(x)), d.type == DType::F8E5M2) << name(d.type) << " " << x;
      EXPECT_EQ(std::isnan(value(x)), d.type != DType::F8E5M2) << name(d.type) << " " << x;
      EXPECT_TRUE(std::isnan(value(-x)) || value(-x) == -INFINITY);
    }
    EXPECT_TRUE(std::isnan(value(NAN)) && std::isnan(value(-NAN)));
    EXPECT_EQ(std::signbit(value(-0.0)), !d.fnuz);
  }
}

}  // namespace
}  // namespace tinyshard::float8_test
