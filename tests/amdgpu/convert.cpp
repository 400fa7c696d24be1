// Conversions between types. Floats beyond an integer's range become its bounds, a NaN becomes 0.
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U16 = std::uint16_t;
using I16 = std::int16_t;
using U32 = std::uint32_t;
using I32 = std::int32_t;

template <class To>
To saturated(double value) {
  if (std::isnan(value)) {
    return 0;
  }
  if (value <= static_cast<double>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  if (value >= static_cast<double>(std::numeric_limits<To>::max())) {
    return std::numeric_limits<To>::max();
  }
  return static_cast<To>(value);
}

template <unsigned Byte>
constexpr Handler from_byte() {
  return lane_by_lane<[](U32 a) { return static_cast<float>((a >> (8 * Byte)) & 255U); }>();
}

U32 pair(U16 low, U16 high) { return low | static_cast<U32>(high) << 16; }

double normalized(float value, double scale) {
  const double v = std::isnan(value) ? 0.0 : static_cast<double>(value);
  return std::nearbyint(std::fmin(std::fmax(v, -1.0), 1.0) * scale);
}

// The FP8 formats of the instruction set: those of OCP elsewhere, with one zero and no infinity on gfx942.
float from_fp8(U32 bits, int fraction_bits, int bias) {
  bits &= 255U;
  if (bits == 0x80U) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const U32 field = (bits & 127U) >> fraction_bits;
  const U32 fraction = bits & ((1U << fraction_bits) - 1);
  const double scale = std::ldexp(1.0, -fraction_bits);
  const double size = field == 0 ? std::ldexp(fraction * scale, 1 - bias)
                                 : std::ldexp(1 + fraction * scale, static_cast<int>(field) - bias);
  return static_cast<float>((bits & 128U) != 0 ? -size : size);
}

U32 to_fp8(float value, int fraction_bits, int bias) {
  if (std::isnan(value) || std::isinf(value)) {
    return 0x80U;
  }
  const int most = (1 << (7 - fraction_bits)) - 1 - bias;
  const U32 bits = round_to(static_cast<double>(value), fraction_bits, 1 - bias, most, false);
  if (bits > 127U) {
    return 0x80U;
  }
  return bits == 0 ? 0 : bits | (std::signbit(value) ? 128U : 0);
}

// Two values to bytes of one half of the result; the other half stays.
template <int Fraction, int Bias>
void pack_fp8(Wave& w, const Instruction& in) {
  Values<float> a;
  Values<float> b;
  Values<U32> out;
  read_source(w, in, 1, a.lane);
  read_source(w, in, 2, b.lane);
  const unsigned shift = (in.op_sel & 8U) != 0 ? 16 : 0;
  const Lanes32& old = w.v[static_cast<std::size_t>(in.operand[0].index)];
  for (int l = 0; l < w.lanes; ++l) {
    const U32 bytes = to_fp8(a.lane[l], Fraction, Bias) | to_fp8(b.lane[l], Fraction, Bias) << 8;
    out.lane[l] = (old[static_cast<std::size_t>(l)] & ~(0xffffU << shift)) | bytes << shift;
  }
  put32(w, in, 0, out.lane);
}

template <int Fraction, int Bias>
void unpack_fp8(Wave& w, const Instruction& in) {
  Values<U32> bits;
  Values<U32> low;
  Values<U32> high;
  raw32(w, in, 1, bits.lane);
  for (int l = 0; l < w.lanes; ++l) {
    low.lane[l] = std::bit_cast<U32>(from_fp8(bits.lane[l], Fraction, Bias));
    high.lane[l] = std::bit_cast<U32>(from_fp8(bits.lane[l] >> 8, Fraction, Bias));
  }
  put_register(w, in.operand[0].index, low.lane);
  put_register(w, in.operand[0].index + 1, high.lane);
}

void add_fp8(Table& rows) {
  rows["v_cvt_f32_fp8"] = {lane_by_lane<[](U32 a) { return from_fp8(a, 3, 8); }>()};
  rows["v_cvt_f32_bf8"] = {lane_by_lane<[](U32 a) { return from_fp8(a, 2, 16); }>()};
  rows["v_cvt_pk_f32_fp8"] = {unpack_fp8<3, 8>};
  rows["v_cvt_pk_f32_bf8"] = {unpack_fp8<2, 16>};
  rows["v_cvt_pk_fp8_f32"] = {pack_fp8<3, 8>};
  rows["v_cvt_pk_bf8_f32"] = {pack_fp8<2, 16>};
}

void add_packed_conversions(Table& rows) {
  rows["v_cvt_pkrtz_f16_f32"] = {lane_by_lane<[](float a, float b) {
    return pair(to_half(static_cast<double>(a), true), to_half(static_cast<double>(b), true));
  }>()};
  rows["v_cvt_pk_rtz_f16_f32"] = rows["v_cvt_pkrtz_f16_f32"];
  rows["v_cvt_pk_u16_u32"] = {
      lane_by_lane<[](U32 a, U32 b) { return pair(saturated<U16>(a), saturated<U16>(b)); }>()};
  rows["v_cvt_pk_i16_i32"] = {lane_by_lane<[](I32 a, I32 b) {
    return pair(static_cast<U16>(saturated<I16>(a)), static_cast<U16>(saturated<I16>(b)));
  }>()};
  rows["v_cvt_pknorm_i16_f32"] = {lane_by_lane<[](float a, float b) {
    return pair(static_cast<U16>(static_cast<I16>(normalized(a, 32767.0))),
                static_cast<U16>(static_cast<I16>(normalized(b, 32767.0))));
  }>()};
  rows["v_pack_b32_f16"] = {lane_by_lane<[](Half a, Half b) { return pair(a.bits, b.bits); }>()};
}

}  // namespace

void add_conversions(Table& rows) {
  rows["v_cvt_f32_u32"] = {lane_by_lane<[](U32 a) { return static_cast<float>(a); }>()};
  rows["v_cvt_f32_i32"] = {lane_by_lane<[](I32 a) { return static_cast<float>(a); }>()};
  rows["v_cvt_u32_f32"] = {
      lane_by_lane<[](float a) { return saturated<U32>(static_cast<double>(a)); }>()};
  rows["v_cvt_i32_f32"] = {
      lane_by_lane<[](float a) { return saturated<I32>(static_cast<double>(a)); }>()};
  rows["v_cvt_flr_i32_f32"] = {
      lane_by_lane<[](float a) { return saturated<I32>(std::floor(static_cast<double>(a))); }>()};
  rows["v_cvt_floor_i32_f32"] = rows["v_cvt_flr_i32_f32"];
  rows["v_cvt_rpi_i32_f32"] = {lane_by_lane<[](float a) {
    return saturated<I32>(std::floor(static_cast<double>(a) + 0.5));
  }>()};
  rows["v_cvt_nearest_i32_f32"] = rows["v_cvt_rpi_i32_f32"];
  rows["v_cvt_f64_f32"] = {lane_by_lane<[](float a) { return static_cast<double>(a); }>()};
  rows["v_cvt_f32_f64"] = {lane_by_lane<[](double a) { return static_cast<float>(a); }>()};
  rows["v_cvt_f64_i32"] = {lane_by_lane<[](I32 a) { return static_cast<double>(a); }>()};
  rows["v_cvt_f64_u32"] = {lane_by_lane<[](U32 a) { return static_cast<double>(a); }>()};
  rows["v_cvt_i32_f64"] = {lane_by_lane<[](double a) { return saturated<I32>(a); }>()};
  rows["v_cvt_u32_f64"] = {lane_by_lane<[](double a) { return saturated<U32>(a); }>()};
  rows["v_cvt_f16_f32"] = {
      lane_by_lane<[](float a) { return Half{to_half(static_cast<double>(a))}; }>()};
  rows["v_cvt_f32_f16"] = {lane_by_lane<[](Half a) { return from_half(a.bits); }>()};
  rows["v_cvt_f16_u16"] = {lane_by_lane<[](U16 a) { return Half{to_half(a)}; }>()};
  rows["v_cvt_f16_i16"] = {lane_by_lane<[](I16 a) { return Half{to_half(a)}; }>()};
  rows["v_cvt_u16_f16"] = {lane_by_lane<[](Half a) {
    return saturated<U16>(static_cast<double>(from_half(a.bits)));
  }>()};
  rows["v_cvt_i16_f16"] = {lane_by_lane<[](Half a) {
    return saturated<I16>(static_cast<double>(from_half(a.bits)));
  }>()};
  rows["v_cvt_i32_i16"] = {lane_by_lane<[](I16 a) { return static_cast<I32>(a); }>()};
  rows["v_cvt_u32_u16"] = {lane_by_lane<[](U16 a) { return static_cast<U32>(a); }>()};
  rows["v_cvt_f32_ubyte0"] = {from_byte<0>()};
  rows["v_cvt_f32_ubyte1"] = {from_byte<1>()};
  rows["v_cvt_f32_ubyte2"] = {from_byte<2>()};
  rows["v_cvt_f32_ubyte3"] = {from_byte<3>()};
  add_packed_conversions(rows);
  add_fp8(rows);
}

}  // namespace amdgpu_emulator
