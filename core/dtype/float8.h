// Bit conversions between f32 and the four floats of 8 bits, to nearest even. A number too large for
// the type becomes its infinity, or NaN where it has none, as in PyTorch. The code generator takes
// the same steps (core/codegen/float8.cpp).
//
//   e4m3fn, bias 7:  0x38 is 1.0, 0x7e is 448, the largest; 0x7f is NaN, and so is what 464 exceeds
#pragma once
#include <bit>
#include <cstdint>

#include "core/dtype/dtype.h"

namespace tinyshard {

struct Float8Format {
  int mantissa, bias;  // bits, and the exponent's offset
  uint32_t largest;    // code of the largest finite number
  uint32_t overflow;   // code of what is larger, without the sign
  bool fnuz;           // no infinities, no -0: 0x80 is the only NaN

  constexpr int dropped() const { return 23 - mantissa; }  // bits of f32's mantissa
  constexpr uint32_t rebias() const { return uint32_t(127 - bias); }
  constexpr uint32_t least_normal() const { return (rebias() + 1) << 23; }  // bits of the f32
  // The f32 from which on neighbours differ by the least subnormal: to add it rounds to these.
  constexpr uint32_t rounder() const { return uint32_t(24 - bias - mantissa + 127) << 23; }
  constexpr uint32_t least_subnormal() const { return uint32_t(1 - bias - mantissa + 127) << 23; }
};

constexpr Float8Format float8_format(DType dtype) {
  switch (dtype) {
    case DType::F8E4M3FN:
      return {3, 7, 0x7e, 0x7f, false};
    case DType::F8E5M2:
      return {2, 15, 0x7b, 0x7c, false};
    case DType::F8E4M3FNUZ:
      return {3, 8, 0x7f, 0x80, true};
    default:
      return {2, 16, 0x7f, 0x80, true};
  }
}

inline float float8_to_f32(const Float8Format& f, uint32_t code) {
  const uint32_t size = code & 0x7fu, sign = (code & 0x80u) << 24;
  if (f.fnuz && code == 0x80) return std::bit_cast<float>(0x7fc00000u);
  const uint32_t fraction = size << f.dropped();
  if (size > f.largest) return std::bit_cast<float>(sign | 0x7f800000u | (fraction & 0x7fffffu));
  if (size >> f.mantissa) return std::bit_cast<float>(sign | (fraction + (f.rebias() << 23)));
  const float subnormal = static_cast<float>(size) * std::bit_cast<float>(f.least_subnormal());
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

inline uint8_t f32_to_float8(const Float8Format& f, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), rest = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  uint32_t code = 0;
  if (rest > 0x7f800000u) {  // a NaN keeps the bits that there is room for
    code = f.overflow | (rest >> f.dropped() & ((1u << f.mantissa) - 1));
    if (code == 0x7c) code = 0x7e;
  } else if (rest < f.least_normal()) {
    const float sum = std::bit_cast<float>(rest) + std::bit_cast<float>(f.rounder());
    code = std::bit_cast<uint32_t>(sum) - f.rounder();
  } else {
    const uint32_t odd = rest >> f.dropped() & 1u, half = 1u << (f.dropped() - 1);
    code = ((rest + half - 1 + odd) >> f.dropped()) - (f.rebias() << f.mantissa);
    if (code > f.largest) code = f.overflow;
  }
  if (f.fnuz && (code == 0 || code >= 0x80)) return static_cast<uint8_t>(code & 0x80u);
  return static_cast<uint8_t>(code | sign);
}

}  // namespace tinyshard
