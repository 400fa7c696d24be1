// Arithmetic of f64.
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/amdgpu/float_ops.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U64 = std::uint64_t;

int field(double value) { return static_cast<int>(std::bit_cast<U64>(value) >> 52 & 2047U); }

bool is_denormal(double value) { return value != 0 && std::fabs(value) < 0x1p-1022; }

struct Scaling {
  double value;
  bool then_fix;
};

Scaling division_scale(double s0, double denominator, double numerator) {
  const bool of_denominator = std::bit_cast<U64>(s0) == std::bit_cast<U64>(denominator);
  const bool of_numerator = std::bit_cast<U64>(s0) == std::bit_cast<U64>(numerator);
  if (numerator == 0 || denominator == 0) {
    return {std::numeric_limits<double>::quiet_NaN(), false};
  }
  if (field(numerator) - field(denominator) >= 768) {
    return {of_denominator ? std::ldexp(s0, 128) : s0, true};
  }
  if (is_denormal(denominator)) {
    return {std::ldexp(s0, 128), false};
  }
  const bool small_reciprocal = is_denormal(1.0 / denominator);
  const bool small_quotient = is_denormal(numerator / denominator);
  if (small_reciprocal && small_quotient) {
    return {of_denominator ? std::ldexp(s0, -128) : s0, true};
  }
  if (small_reciprocal) {
    return {std::ldexp(s0, -128), false};
  }
  if (small_quotient) {
    return {of_numerator ? std::ldexp(s0, 128) : s0, true};
  }
  if (field(numerator) <= 53) {
    return {std::ldexp(s0, 128), false};
  }
  return {s0, false};
}

void div_scale(Wave& w, const Instruction& in) {
  Values<double> s0;
  Values<double> s1;
  Values<double> s2;
  read_source(w, in, 2, s0.lane);
  read_source(w, in, 3, s1.lane);
  read_source(w, in, 4, s2.lane);
  U64 mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const Scaling scaling = division_scale(s0.lane[l], s1.lane[l], s2.lane[l]);
    s0.lane[l] = scaling.value;
    mask |= scaling.then_fix ? 1ULL << l : 0;
  }
  write_result(w, in, 0, s0.lane);
  put_mask(w, in.operand[1], mask);
}

// a * b + c, where the result is near c, rounded once after the scaling by a power of two.
double scaled_fma(double a, double b, double c, int power) {
  double sum = std::fma(a, b, c);
  if (const double scaled = std::ldexp(sum, power); !is_denormal(scaled)) {
    return scaled;
  }
  const double lost = std::fma(a, b, c - sum);
  if (lost != 0 && std::isfinite(sum) && sum != 0 && (std::bit_cast<U64>(sum) & 1U) == 0) {
    sum = std::bit_cast<double>(std::bit_cast<U64>(sum) + ((lost > 0) == (sum > 0) ? 1 : ~0ULL));
  }
  return std::ldexp(sum, power);
}

void div_fmas(Wave& w, const Instruction& in) {
  Values<double> a;
  Values<double> b;
  Values<double> c;
  read_source(w, in, 1, a.lane);
  read_source(w, in, 2, b.lane);
  read_source(w, in, 3, c.lane);
  Operand vcc;
  vcc.kind = Kind::Scalar;
  vcc.index = kVcc;
  const U64 fix = get_mask(w, vcc);
  w.defined &= w.bits_defined[kVcc] | static_cast<U64>(w.bits_defined[kVcc + 1]) << 32;
  for (int l = 0; l < w.lanes; ++l) {
    a.lane[l] = ((fix >> l) & 1U) != 0 ? scaled_fma(a.lane[l], b.lane[l], c.lane[l],
                                                    field(c.lane[l]) > 1023 ? 128 : -128)
                                       : std::fma(a.lane[l], b.lane[l], c.lane[l]);
  }
  write_result(w, in, 0, a.lane);
}

double div_fixup(double quotient, double denominator, double numerator) {
  const double sign = std::signbit(denominator) != std::signbit(numerator) ? -1.0 : 1.0;
  const double infinity = std::numeric_limits<double>::infinity();
  if (std::isnan(numerator)) {
    return numerator;
  }
  if (std::isnan(denominator)) {
    return denominator;
  }
  if ((numerator == 0 && denominator == 0) || (std::isinf(numerator) && std::isinf(denominator))) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (denominator == 0 || std::isinf(numerator)) {
    return sign * infinity;
  }
  if (std::isinf(denominator) || numerator == 0) {
    return sign * 0.0;
  }
  return std::copysign(std::isnan(quotient) ? infinity : quotient, sign);
}

}  // namespace

void add_double(Table& rows) {
  rows["v_add_f64"] = {lane_by_lane<[](double a, double b) { return a + b; }>()};
  rows["v_mul_f64"] = {lane_by_lane<[](double a, double b) { return a * b; }>()};
  rows["v_fma_f64"] = {
      lane_by_lane<[](double a, double b, double c) { return std::fma(a, b, c); }>()};
  rows["v_fmac_f64"] = {rows["v_fma_f64"].run, 1, Effect::Partial};
  rows["v_min_f64"] = {lane_by_lane<[](double a, double b) { return least(a, b); }>()};
  rows["v_max_f64"] = {lane_by_lane<[](double a, double b) { return greatest(a, b); }>()};
  rows["v_floor_f64"] = {lane_by_lane<[](double a) { return std::floor(a); }>()};
  rows["v_ceil_f64"] = {lane_by_lane<[](double a) { return std::ceil(a); }>()};
  rows["v_trunc_f64"] = {lane_by_lane<[](double a) { return std::trunc(a); }>()};
  rows["v_rndne_f64"] = {lane_by_lane<[](double a) { return std::nearbyint(a); }>()};
  rows["v_fract_f64"] = {lane_by_lane<[](double a) { return fraction(a); }>()};
  rows["v_rcp_f64"] = {lane_by_lane<[](double a) { return coarse(1.0 / a); }>()};
  rows["v_rsq_f64"] = {lane_by_lane<[](double a) { return coarse(1.0 / std::sqrt(a)); }>()};
  rows["v_sqrt_f64"] = {lane_by_lane<[](double a) { return coarse(std::sqrt(a)); }>()};
  rows["v_frexp_mant_f64"] = {lane_by_lane<[](double a) { return mantissa(a); }>()};
  rows["v_frexp_exp_i32_f64"] = {lane_by_lane<[](double a) { return exponent_of(a); }>()};
  rows["v_ldexp_f64"] = {lane_by_lane<[](double a, std::int32_t e) {
    return std::ldexp(a, std::min(std::max(e, -5000), 5000));
  }>()};
  rows["v_div_scale_f64"] = {div_scale, 2};
  rows["v_div_fmas_f64"] = {div_fmas};
  rows["v_div_fixup_f64"] = {
      lane_by_lane<[](double a, double b, double c) { return div_fixup(a, b, c); }>()};
}

}  // namespace amdgpu_emulator
