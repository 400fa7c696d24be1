// Arithmetic of f16: computed in f64 and rounded once.
#include "tests/amdgpu/half.h"

#include <cmath>
#include <cstdint>
#include <numbers>

#include "tests/amdgpu/float_ops.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

double wide(Half h) { return static_cast<double>(from_half(h.bits)); }
Half half(double value) { return {to_half(value)}; }

// Applies a function of doubles to each lane.
template <double (*F)(double)>
constexpr Handler function() {
  return lane_by_lane<[](Half a) { return half(F(wide(a))); }>();
}

double reciprocal(double a) { return 1.0 / a; }
double reciprocal_root(double a) { return 1.0 / std::sqrt(a); }
double square_root(double a) { return std::sqrt(a); }
double power_of_two(double a) { return std::exp2(a); }
double logarithm(double a) { return std::log2(a); }
double round_down(double a) { return std::floor(a); }
double round_up(double a) { return std::ceil(a); }
double round_to_zero(double a) { return std::trunc(a); }
double round_to_even(double a) { return std::nearbyint(a); }
double sine(double a) { return std::sin(2 * std::numbers::pi * std::remainder(a, 1.0)); }
double cosine(double a) { return std::cos(2 * std::numbers::pi * std::remainder(a, 1.0)); }

Half fused(Half a, Half b, Half c) { return half(odd_fma(wide(a), wide(b), wide(c))); }

Half div_fixup(Half quotient, Half denominator, Half numerator) {
  const double q = wide(quotient);
  const double d = wide(denominator);
  const double n = wide(numerator);
  const double sign = std::signbit(d) != std::signbit(n) ? -1.0 : 1.0;
  if (std::isnan(n) || std::isnan(d)) {
    return std::isnan(n) ? numerator : denominator;
  }
  if ((n == 0 && d == 0) || (std::isinf(n) && std::isinf(d))) {
    return {0x7e00};
  }
  if (d == 0 || std::isinf(n)) {
    return half(sign * HUGE_VAL);
  }
  if (std::isinf(d) || n == 0) {
    return half(sign * 0.0);
  }
  return half(std::copysign(q, sign));
}

void add_functions(Table& rows) {
  rows["v_rcp_f16"] = {function<reciprocal>()};
  rows["v_rsq_f16"] = {function<reciprocal_root>()};
  rows["v_sqrt_f16"] = {function<square_root>()};
  rows["v_exp_f16"] = {function<power_of_two>()};
  rows["v_log_f16"] = {function<logarithm>()};
  rows["v_floor_f16"] = {function<round_down>()};
  rows["v_ceil_f16"] = {function<round_up>()};
  rows["v_trunc_f16"] = {function<round_to_zero>()};
  rows["v_rndne_f16"] = {function<round_to_even>()};
  rows["v_sin_f16"] = {function<sine>()};
  rows["v_cos_f16"] = {function<cosine>()};
  rows["v_fract_f16"] = {lane_by_lane<[](Half a) {
    return half(std::fmin(wide(a) - std::floor(wide(a)), 0x1.ffcp-1));
  }>()};
  rows["v_frexp_mant_f16"] = {lane_by_lane<[](Half a) { return half(mantissa(wide(a))); }>()};
  rows["v_frexp_exp_i16_f16"] = {
      lane_by_lane<[](Half a) { return static_cast<std::int16_t>(exponent_of(wide(a))); }>()};
  rows["v_ldexp_f16"] = {
      lane_by_lane<[](Half a, std::int16_t e) { return half(std::ldexp(wide(a), e)); }>()};
}

}  // namespace

void add_half(Table& rows) {
  rows["v_add_f16"] = {lane_by_lane<[](Half a, Half b) { return half(wide(a) + wide(b)); }>()};
  rows["v_sub_f16"] = {lane_by_lane<[](Half a, Half b) { return half(wide(a) - wide(b)); }>()};
  rows["v_subrev_f16"] = {lane_by_lane<[](Half a, Half b) { return half(wide(b) - wide(a)); }>()};
  rows["v_mul_f16"] = {lane_by_lane<[](Half a, Half b) { return half(wide(a) * wide(b)); }>()};
  rows["v_fma_f16"] = {lane_by_lane<[](Half a, Half b, Half c) { return fused(a, b, c); }>()};
  rows["v_fmac_f16"] = {rows["v_fma_f16"].run, 1, Effect::Partial};
  rows["v_fmamk_f16"] = rows["v_fma_f16"];
  rows["v_fmaak_f16"] = rows["v_fma_f16"];
  rows["v_mad_f16"] = {lane_by_lane<[](Half a, Half b, Half c) {
    return half(wide(half(wide(a) * wide(b))) + wide(c));
  }>()};
  rows["v_mac_f16"] = {rows["v_mad_f16"].run, 1, Effect::Partial};
  rows["v_min_f16"] = {
      lane_by_lane<[](Half a, Half b) { return half(least(wide(a), wide(b))); }>()};
  rows["v_max_f16"] = {
      lane_by_lane<[](Half a, Half b) { return half(greatest(wide(a), wide(b))); }>()};
  rows["v_min3_f16"] = {lane_by_lane<[](Half a, Half b, Half c) {
    return half(least(least(wide(a), wide(b)), wide(c)));
  }>()};
  rows["v_max3_f16"] = {lane_by_lane<[](Half a, Half b, Half c) {
    return half(greatest(greatest(wide(a), wide(b)), wide(c)));
  }>()};
  rows["v_med3_f16"] = {lane_by_lane<[](Half a, Half b, Half c) {
    return half(median(wide(a), wide(b), wide(c)));
  }>()};
  rows["v_div_fixup_f16"] = {
      lane_by_lane<[](Half a, Half b, Half c) { return div_fixup(a, b, c); }>()};
  add_functions(rows);
}

}  // namespace amdgpu_emulator
