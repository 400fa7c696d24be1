// The 16-bit floats of the instruction set, by integer arithmetic: every conversion rounds once, to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace amdgpu_emulator {

struct Half {
  std::uint16_t bits;
};

inline float from_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 31U;
  const std::uint32_t fraction = half & 0x3ffU;
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  }
  if (exponent == 0) {
    const float small = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(small) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
}

// Rounds to a format of `fraction_bits` and an exponent of at least `least` (of its smallest normal number) and at most
// `most`; gives the bits without the sign.
inline std::uint16_t round_to(double value, int fraction_bits, int least, int most, bool to_zero) {
  const int exponent_field_max = most - least + 2;
  const double size = std::fabs(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((exponent_field_max << fraction_bits) |
                                      (1 << (fraction_bits - 1)));
  }
  if (std::isinf(value)) {
    return static_cast<std::uint16_t>(exponent_field_max << fraction_bits);
  }
  if (size == 0) {
    return 0;
  }
  int exponent = std::ilogb(size);
  if (exponent < least) {
    exponent = least;
  }
  const double scaled = std::ldexp(size, fraction_bits - exponent);
  auto whole = static_cast<std::int64_t>(to_zero ? std::trunc(scaled) : std::nearbyint(scaled));
  // A whole number of 2^fraction_bits and more carries into the exponent by itself.
  std::int64_t bits = (static_cast<std::int64_t>(exponent - least) << fraction_bits) + whole;
  if (bits >= (static_cast<std::int64_t>(exponent_field_max) << fraction_bits)) {
    bits = (static_cast<std::int64_t>(exponent_field_max) << fraction_bits) - (to_zero ? 1 : 0);
  }
  return static_cast<std::uint16_t>(bits);
}

inline std::uint16_t to_half(double value, bool to_zero = false) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  return static_cast<std::uint16_t>(sign | round_to(value, 10, -14, 15, to_zero));
}

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t to_bf16(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  return static_cast<std::uint16_t>(sign | round_to(value, 7, -126, 127, false));
}

// a * b + c whose last bit tells that digits were lost (round to odd): rounding it to 16 bits then rounds only once.
inline double odd_fma(double a, double b, double c) {
  const double product = a * b;  // exact for operands of 24 bits and less
  const double sum = product + c;
  if (!std::isfinite(sum)) {
    return sum;
  }
  const double kept = sum - product;
  const double lost = (product - (sum - kept)) + (c - kept);
  if (lost == 0 || (std::bit_cast<std::uint64_t>(sum) & 1U) != 0) {
    return sum;
  }
  const bool away = (lost > 0) == (sum > 0);
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + (away ? 1 : ~0ULL));
}

}  // namespace amdgpu_emulator
