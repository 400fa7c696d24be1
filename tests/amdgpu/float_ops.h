// Float operations that several classes of instructions share.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace amdgpu_emulator {

// The hardware's transcendental functions are right to one unit in the last place. Which of the two neighbours of the
// exact value comes out is drawn from the value's own bits, so that code which relies on one of them fails.
inline float near(double exact) {
  const auto rounded = static_cast<float>(exact);
  if (static_cast<double>(rounded) == exact || !std::isfinite(rounded)) {
    return rounded;
  }
  const std::uint32_t mixed = (std::bit_cast<std::uint32_t>(rounded) * 0x9e3779b1U) >> 29;
  if (mixed != 0) {
    return rounded;
  }
  return std::nextafter(rounded, static_cast<double>(rounded) < exact ? HUGE_VALF : -HUGE_VALF);
}

// f64's reciprocal and roots come with few digits; programs refine them.
inline double coarse(double exact) {
  if (!std::isfinite(exact) || exact == 0) {
    return exact;
  }
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(exact) & ~((1ULL << 26) - 1));
}

inline float no_denormal(float value) {
  return std::fabs(value) < 0x1p-126F ? std::copysign(0.0F, value) : value;
}

template <class T>
T least(T a, T b) {  // IEEE's minNum; -0 is less than +0
  if (std::isnan(a)) {
    return b;
  }
  if (std::isnan(b)) {
    return a;
  }
  return a < b || (a == b && std::signbit(a)) ? a : b;
}

template <class T>
T greatest(T a, T b) {
  if (std::isnan(a)) {
    return b;
  }
  if (std::isnan(b)) {
    return a;
  }
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

template <class T>
T median(T a, T b, T c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) {
    return least(least(a, b), c);
  }
  return greatest(least(a, b), least(greatest(a, b), c));
}

template <class T>
T fraction(T a) {  // always less than 1
  const T below_one = std::nextafter(T(1), T(0));
  return std::isinf(a) ? std::numeric_limits<T>::quiet_NaN() : least(a - std::floor(a), below_one);
}

template <class T>
T mantissa(T a) {
  int exponent = 0;
  return std::isfinite(a) ? std::frexp(a, &exponent) : a;
}

template <class T>
std::int32_t exponent_of(T a) {
  int exponent = 0;
  if (!std::isfinite(a) || a == 0) {
    return 0;
  }
  std::frexp(a, &exponent);
  return exponent;
}

}  // namespace amdgpu_emulator
