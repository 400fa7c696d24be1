// Arithmetic of f32.
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "tests/amdgpu/float_ops.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U32 = std::uint32_t;

float legacy_product(float a, float b) { return a == 0 || b == 0 ? 0.0F : a * b; }

// v_fmamk's constant is its second source, v_fmaak's the third.
float fused(float a, float b, float c) { return std::fma(a, b, c); }

int field(float value) { return static_cast<int>(std::bit_cast<U32>(value) >> 23 & 255U); }

bool is_denormal(double value, double smallest) {
  return value != 0 && std::fabs(value) < smallest;
}

// Scales numerator or denominator so that neither the reciprocal nor the quotient leaves the range of normal numbers.
template <class T>
struct Scaling {
  T value;
  bool then_fix;
};

Scaling<float> division_scale(float s0, float denominator, float numerator) {
  const bool of_denominator = std::bit_cast<U32>(s0) == std::bit_cast<U32>(denominator);
  const bool of_numerator = std::bit_cast<U32>(s0) == std::bit_cast<U32>(numerator);
  const double reciprocal = 1.0 / static_cast<double>(denominator);
  const double quotient = static_cast<double>(numerator) / static_cast<double>(denominator);
  if (numerator == 0 || denominator == 0) {
    return {std::numeric_limits<float>::quiet_NaN(), false};
  }
  if (field(numerator) - field(denominator) >= 96) {
    return {of_denominator ? std::ldexp(s0, 64) : s0, true};
  }
  if (is_denormal(static_cast<double>(denominator), 0x1p-126)) {
    return {std::ldexp(s0, 64), false};
  }
  if (is_denormal(reciprocal, 0x1p-126) && is_denormal(quotient, 0x1p-126)) {
    return {of_denominator ? std::ldexp(s0, -64) : s0, true};
  }
  if (is_denormal(reciprocal, 0x1p-126)) {
    return {std::ldexp(s0, -64), false};
  }
  if (is_denormal(quotient, 0x1p-126)) {
    return {of_numerator ? std::ldexp(s0, 64) : s0, true};
  }
  if (field(numerator) <= 23) {
    return {std::ldexp(s0, 64), false};
  }
  return {s0, false};
}

void div_scale(Wave& w, const Instruction& in) {
  Values<float> s0;
  Values<float> s1;
  Values<float> s2;
  read_source(w, in, 2, s0.lane);
  read_source(w, in, 3, s1.lane);
  read_source(w, in, 4, s2.lane);
  std::uint64_t mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const Scaling<float> scaling = division_scale(s0.lane[l], s1.lane[l], s2.lane[l]);
    s0.lane[l] = scaling.value;
    mask |= scaling.then_fix ? 1ULL << l : 0;
  }
  write_result(w, in, 0, s0.lane);
  put_mask(w, in.operand[1], mask);
}

std::uint64_t vcc_of(Wave& w) {
  Operand vcc;
  vcc.kind = Kind::Scalar;
  vcc.index = kVcc;
  const std::uint64_t known =
      w.bits_defined[kVcc] | static_cast<std::uint64_t>(w.bits_defined[kVcc + 1]) << 32;
  w.defined &= known;
  return get_mask(w, vcc);
}

void div_fmas(Wave& w, const Instruction& in) {
  Values<float> a;
  Values<float> b;
  Values<float> c;
  read_source(w, in, 1, a.lane);
  read_source(w, in, 2, b.lane);
  read_source(w, in, 3, c.lane);
  const std::uint64_t fix = vcc_of(w);
  for (int l = 0; l < w.lanes; ++l) {
    if (((fix >> l) & 1U) != 0) {
      const double exact = odd_fma(static_cast<double>(a.lane[l]), static_cast<double>(b.lane[l]),
                                   static_cast<double>(c.lane[l]));
      a.lane[l] = static_cast<float>(std::ldexp(exact, field(c.lane[l]) > 127 ? 64 : -64));
    } else {
      a.lane[l] = std::fma(a.lane[l], b.lane[l], c.lane[l]);
    }
  }
  write_result(w, in, 0, a.lane);
}

float div_fixup(float quotient, float denominator, float numerator) {
  const bool negative = std::signbit(denominator) != std::signbit(numerator);
  const float sign = negative ? -1.0F : 1.0F;
  const float infinity = std::numeric_limits<float>::infinity();
  if (std::isnan(numerator)) {
    return numerator;
  }
  if (std::isnan(denominator)) {
    return denominator;
  }
  if ((numerator == 0 && denominator == 0) || (std::isinf(numerator) && std::isinf(denominator))) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (denominator == 0 || std::isinf(numerator)) {
    return sign * infinity;
  }
  if (std::isinf(denominator) || numerator == 0) {
    return sign * 0.0F;
  }
  return std::copysign(std::isnan(quotient) ? infinity : quotient, sign);
}

float ldexp_of(float a, std::int32_t e) {
  return std::ldexp(a, std::min(std::max(e, -2000), 2000));
}

float sine_of_turns(float a, bool cosine) {
  const double angle = std::remainder(static_cast<double>(a), 1.0) * 2 * std::numbers::pi;
  return std::isinf(a) ? std::numeric_limits<float>::quiet_NaN()
                       : near(cosine ? std::cos(angle) : std::sin(angle));
}

void add_sums(Table& rows) {
  rows["v_add_f32"] = {lane_by_lane<[](float a, float b) { return a + b; }>()};
  rows["v_sub_f32"] = {lane_by_lane<[](float a, float b) { return a - b; }>()};
  rows["v_subrev_f32"] = {lane_by_lane<[](float a, float b) { return b - a; }>()};
  rows["v_mul_f32"] = {lane_by_lane<[](float a, float b) { return a * b; }>()};
  rows["v_mul_legacy_f32"] = {
      lane_by_lane<[](float a, float b) { return legacy_product(a, b); }>()};
  rows["v_mul_dx9_zero_f32"] = rows["v_mul_legacy_f32"];
  rows["v_fma_f32"] = {lane_by_lane<[](float a, float b, float c) { return fused(a, b, c); }>()};
  rows["v_fmac_f32"] = {rows["v_fma_f32"].run, 1, Effect::Partial};
  rows["v_fmamk_f32"] = rows["v_fma_f32"];
  rows["v_fmaak_f32"] = rows["v_fma_f32"];
  // Multiplies and adds with two roundings, and flushes denormals always.
  rows["v_mad_f32"] = {lane_by_lane<[](float a, float b, float c) {
    return no_denormal(no_denormal(no_denormal(a) * no_denormal(b)) + no_denormal(c));
  }>()};
  rows["v_mac_f32"] = {rows["v_mad_f32"].run, 1, Effect::Partial};
  rows["v_min_f32"] = {lane_by_lane<[](float a, float b) { return least(a, b); }>()};
  rows["v_max_f32"] = {lane_by_lane<[](float a, float b) { return greatest(a, b); }>()};
  rows["v_min3_f32"] = {
      lane_by_lane<[](float a, float b, float c) { return least(least(a, b), c); }>()};
  rows["v_max3_f32"] = {
      lane_by_lane<[](float a, float b, float c) { return greatest(greatest(a, b), c); }>()};
  rows["v_med3_f32"] = {lane_by_lane<[](float a, float b, float c) { return median(a, b, c); }>()};
  rows["v_minmax_f32"] = {
      lane_by_lane<[](float a, float b, float c) { return greatest(least(a, b), c); }>()};
  rows["v_maxmin_f32"] = {
      lane_by_lane<[](float a, float b, float c) { return least(greatest(a, b), c); }>()};
}

void add_functions(Table& rows) {
  rows["v_rcp_f32"] = {lane_by_lane<[](float a) {
    return no_denormal(near(1.0 / static_cast<double>(no_denormal(a))));
  }>()};
  rows["v_rcp_iflag_f32"] = rows["v_rcp_f32"];
  rows["v_rsq_f32"] = {lane_by_lane<[](float a) {
    return near(1.0 / std::sqrt(static_cast<double>(no_denormal(a))));
  }>()};
  rows["v_sqrt_f32"] = {
      lane_by_lane<[](float a) { return near(std::sqrt(static_cast<double>(no_denormal(a)))); }>()};
  rows["v_exp_f32"] = {
      lane_by_lane<[](float a) { return no_denormal(near(std::exp2(static_cast<double>(a)))); }>()};
  rows["v_log_f32"] = {
      lane_by_lane<[](float a) { return near(std::log2(static_cast<double>(no_denormal(a)))); }>()};
  rows["v_sin_f32"] = {lane_by_lane<[](float a) { return sine_of_turns(a, false); }>()};
  rows["v_cos_f32"] = {lane_by_lane<[](float a) { return sine_of_turns(a, true); }>()};
  rows["v_floor_f32"] = {lane_by_lane<[](float a) { return std::floor(a); }>()};
  rows["v_ceil_f32"] = {lane_by_lane<[](float a) { return std::ceil(a); }>()};
  rows["v_trunc_f32"] = {lane_by_lane<[](float a) { return std::trunc(a); }>()};
  rows["v_rndne_f32"] = {lane_by_lane<[](float a) { return std::nearbyint(a); }>()};
  rows["v_fract_f32"] = {lane_by_lane<[](float a) { return fraction(a); }>()};
  rows["v_frexp_mant_f32"] = {lane_by_lane<[](float a) { return mantissa(a); }>()};
  rows["v_frexp_exp_i32_f32"] = {lane_by_lane<[](float a) { return exponent_of(a); }>()};
  rows["v_ldexp_f32"] = {lane_by_lane<[](float a, std::int32_t e) { return ldexp_of(a, e); }>()};
  rows["v_div_scale_f32"] = {div_scale, 2};
  rows["v_div_fmas_f32"] = {div_fmas};
  rows["v_div_fixup_f32"] = {
      lane_by_lane<[](float a, float b, float c) { return div_fixup(a, b, c); }>()};
}

}  // namespace

void add_float(Table& rows) {
  add_sums(rows);
  add_functions(rows);
}

}  // namespace amdgpu_emulator
