// Bit conversions between f32 and the floats that registers widen to it, round to nearest even.
#pragma once
#include <bit>
#include <cstdint>

#include "core/dtype/dtype.h"
#include "core/dtype/float8.h"

namespace tinyshard {

inline bool is_half(DType dtype) { return dtype == DType::F16 || dtype == DType::BF16; }
// A float that is computed with in f32.
inline bool is_narrow(DType dtype) { return is_half(dtype) || is_float8(dtype); }

inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t f32_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t bits) {
  uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = (bits >> 10) & 31u,
           mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t f32_to_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value), sign = (bits >> 16) & 0x8000u,
           rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // subnormal in f16: let the f32 adder round at 2^-24
    float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// f64 to f32 so that a rounding to a narrow float that follows is the only one: what f32 cannot hold is
// kept as an odd last bit, which lies below every place where a narrow float rounds. 1 + 2^-8 +
// 2^-40 is just above the middle of two bf16; to the nearest f32 it would be in the middle.
inline float f64_to_odd_f32(double value) {
  const auto nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value) return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  const bool above = (back < 0 ? -back : back) > (value < 0 ? -value : value);
  return std::bit_cast<float>((bits - (above ? 1u : 0u)) | 1u);
}

// The same from 64 bits to f64: where there are more than 53, the last twelve become one.
template <class Integer>
double integer_to_odd_f64(Integer value) {
  const Integer high = value >> 53;
  if (high != 0 && high != Integer(-1))
    value = Integer((value & ~Integer{0xfff}) | ((value & 0xfff) != 0 ? 0x800 : 0));
  return static_cast<double>(value);
}

inline uint16_t f64_to_f16(double value) { return f32_to_f16(f64_to_odd_f32(value)); }
inline uint16_t f64_to_bf16(double value) { return f32_to_bf16(f64_to_odd_f32(value)); }

// Convert the bits of a narrow float to a number, and a number to the bits of the nearest narrow
// float, rounded once.
inline float narrow_to_f32(DType dtype, uint32_t bits) {
  if (dtype == DType::F16) return f16_to_f32(static_cast<uint16_t>(bits));
  if (dtype == DType::BF16) return bf16_to_f32(static_cast<uint16_t>(bits));
  return float8_to_f32(float8_format(dtype), bits & 0xffu);
}
inline uint32_t f64_to_narrow(DType dtype, double value) {
  if (dtype == DType::F16) return f64_to_f16(value);
  if (dtype == DType::BF16) return f64_to_bf16(value);
  return f32_to_float8(float8_format(dtype), f64_to_odd_f32(value));
}

// The value of a float type next to a number, rounded once.
inline double rounded_to(DType dtype, double value) {
  if (dtype == DType::F64) return value;
  if (is_narrow(dtype)) return narrow_to_f32(dtype, f64_to_narrow(dtype, value));
  return static_cast<float>(value);
}
template <class Integer>
double rounded_integer(DType dtype, Integer value) {
  if (is_narrow(dtype)) return rounded_to(dtype, integer_to_odd_f64(value));
  return dtype == DType::F32 ? static_cast<float>(value) : static_cast<double>(value);
}

}  // namespace tinyshard
