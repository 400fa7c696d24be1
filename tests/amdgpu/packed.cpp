// Two values in a register: packed f16, integers of 16 bits and f32, sums of products, and mixed precision.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/amdgpu/float_ops.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U16 = std::uint16_t;
using I16 = std::int16_t;
using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;

// The halves that the low and the high result take of source `k`.
struct Halves {
  Values<U16> low;
  Values<U16> high;
};

void read_halves(Wave& w, const Instruction& in, int k, bool is_float, Halves& out) {
  const Operand& operand = in.operand[static_cast<std::size_t>(k)];
  Values<U32> bits;
  raw32(w, in, k, bits.lane);
  const bool inline_float =
      operand.kind == Kind::Constant && operand.bits16 != static_cast<U16>(operand.bits32);
  const int source = k - 1;
  const unsigned low = (in.op_sel >> source & 1U) * 16;
  const unsigned high = (in.op_sel_hi >> source & 1U) * 16;
  const U16 flip_low = is_float && (in.negate_low >> source & 1U) != 0 ? 0x8000U : 0;
  const U16 flip_high = is_float && (in.negate_high >> source & 1U) != 0 ? 0x8000U : 0;
  for (int l = 0; l < w.lanes; ++l) {
    const U32 value = inline_float ? operand.bits16 : bits.lane[l];
    out.low.lane[l] = static_cast<U16>((value >> low) ^ flip_low);
    out.high.lane[l] = static_cast<U16>((value >> high) ^ flip_high);
    if (is_float && w.flush16_64) {
      out.low.lane[l] = flushed_half(out.low.lane[l]);
      out.high.lane[l] = flushed_half(out.high.lane[l]);
    }
  }
}

double wide(U16 h) { return static_cast<double>(from_half(h)); }

template <bool IsFloat, auto F, std::size_t Sources>
void packed16(Wave& w, const Instruction& in) {
  Halves source[3];
  for (std::size_t i = 0; i < Sources; ++i) {
    const int k = static_cast<int>(i) + 1;
    read_halves(w, in, k < in.operands ? k : 0, IsFloat, source[i]);
  }
  Values<U32> out;
  const auto apply = [&](U16 a, U16 b, U16 c) {
    U16 value = F(a, b, c);
    if (IsFloat && in.clamp) {
      value = to_half(scaled_and_clamped(in, wide(value)));
    }
    return static_cast<U32>(IsFloat && w.flush16_64 ? flushed_half(value) : value);
  };
  for (int l = 0; l < w.lanes; ++l) {
    out.lane[l] = apply(source[0].low.lane[l], source[1].low.lane[l], source[2].low.lane[l]) |
                  apply(source[0].high.lane[l], source[1].high.lane[l], source[2].high.lane[l])
                      << 16;
  }
  put_register(w, in.operand[0].index, out.lane);
}

void add_packed16(Table& rows) {
  rows["v_pk_add_f16"] = {
      packed16<true, [](U16 a, U16 b, U16) { return to_half(wide(a) + wide(b)); }, 2>};
  rows["v_pk_mul_f16"] = {
      packed16<true, [](U16 a, U16 b, U16) { return to_half(wide(a) * wide(b)); }, 2>};
  rows["v_pk_min_f16"] = {
      packed16<true, [](U16 a, U16 b, U16) { return to_half(least(wide(a), wide(b))); }, 2>};
  rows["v_pk_max_f16"] = {
      packed16<true, [](U16 a, U16 b, U16) { return to_half(greatest(wide(a), wide(b))); }, 2>};
  rows["v_pk_fma_f16"] = {
      packed16<true,
               [](U16 a, U16 b, U16 c) { return to_half(odd_fma(wide(a), wide(b), wide(c))); }, 3>};
  rows["v_pk_fmac_f16"] = {rows["v_pk_fma_f16"].run, 1, Effect::Partial};
  const auto sum = packed16<false, [](U16 a, U16 b, U16) { return static_cast<U16>(a + b); }, 2>;
  const auto difference =
      packed16<false, [](U16 a, U16 b, U16) { return static_cast<U16>(a - b); }, 2>;
  const auto product_sum =
      packed16<false, [](U16 a, U16 b, U16 c) { return static_cast<U16>(U32(a) * b + c); }, 3>;
  rows["v_pk_add_u16"] = rows["v_pk_add_i16"] = {sum};
  rows["v_pk_sub_u16"] = rows["v_pk_sub_i16"] = {difference};
  rows["v_pk_mad_u16"] = rows["v_pk_mad_i16"] = {product_sum};
  rows["v_pk_mul_lo_u16"] = {
      packed16<false, [](U16 a, U16 b, U16) { return static_cast<U16>(U32(a) * b); }, 2>};
  rows["v_pk_min_u16"] = {packed16<false, [](U16 a, U16 b, U16) { return std::min(a, b); }, 2>};
  rows["v_pk_max_u16"] = {packed16<false, [](U16 a, U16 b, U16) { return std::max(a, b); }, 2>};
  rows["v_pk_min_i16"] = {packed16<false,
                                   [](U16 a, U16 b, U16) {
                                     return static_cast<U16>(
                                         std::min(static_cast<I16>(a), static_cast<I16>(b)));
                                   },
                                   2>};
  rows["v_pk_max_i16"] = {packed16<false,
                                   [](U16 a, U16 b, U16) {
                                     return static_cast<U16>(
                                         std::max(static_cast<I16>(a), static_cast<I16>(b)));
                                   },
                                   2>};
  rows["v_pk_lshlrev_b16"] = {
      packed16<false, [](U16 a, U16 b, U16) { return static_cast<U16>(b << (a & 15U)); }, 2>};
  rows["v_pk_lshrrev_b16"] = {
      packed16<false, [](U16 a, U16 b, U16) { return static_cast<U16>(b >> (a & 15U)); }, 2>};
  rows["v_pk_ashrrev_i16"] = {
      packed16<false,
               [](U16 a, U16 b, U16) { return static_cast<U16>(static_cast<I16>(b) >> (a & 15U)); },
               2>};
}

// Two f32 in a pair of registers.
struct Pair {
  Values<U32> low;
  Values<U32> high;
  U64 low_known = ~0ULL;
  U64 high_known = ~0ULL;
};

void read_pair(Wave& w, const Instruction& in, int k, Pair& out) {
  const Operand& operand = in.operand[static_cast<std::size_t>(k)];
  const int source = k - 1;
  const auto word = [&](bool second, std::uint32_t* to) {
    for (int l = 0; l < w.lanes; ++l) {
      if (operand.kind == Kind::Vector) {
        to[l] = w.v[static_cast<std::size_t>(operand.index + (second ? 1 : 0))]
                   [static_cast<std::size_t>(l)];
      } else if (operand.kind == Kind::Scalar && operand.count > 1) {
        to[l] = read_scalar(w, operand.index + (second ? 1 : 0));
      } else {
        to[l] = scalar32(w, operand);
      }
    }
  };
  word((in.op_sel >> source & 1U) != 0, out.low.lane);
  word((in.op_sel_hi >> source & 1U) != 0, out.high.lane);
  out.low_known = known_word(w, operand, static_cast<int>(in.op_sel >> source & 1U));
  out.high_known = known_word(w, operand, static_cast<int>(in.op_sel_hi >> source & 1U));
  const auto prepare = [&](std::uint32_t* values, bool negate) {
    for (int l = 0; l < w.lanes; ++l) {
      float value = std::bit_cast<float>(values[l]);
      value = negate ? -value : value;
      values[l] = std::bit_cast<U32>(w.flush32 ? flushed(value) : value);
    }
  };
  if (in.name != "v_pk_mov_b32") {
    prepare(out.low.lane, (in.negate_low >> source & 1U) != 0);
    prepare(out.high.lane, (in.negate_high >> source & 1U) != 0);
  }
}

template <auto F>
void packed32(Wave& w, const Instruction& in) {
  Pair source[3];
  for (int k = 1; k < in.operands; ++k) {
    read_pair(w, in, k, source[k - 1]);
  }
  const auto apply = [&](U32 a, U32 b, U32 c) {
    const float value = scaled_and_clamped(
        in, F(std::bit_cast<float>(a), std::bit_cast<float>(b), std::bit_cast<float>(c)));
    return std::bit_cast<U32>(w.flush32 ? flushed(value) : value);
  };
  for (int l = 0; l < w.lanes; ++l) {
    source[0].low.lane[l] =
        apply(source[0].low.lane[l], source[1].low.lane[l], source[2].low.lane[l]);
    source[0].high.lane[l] =
        apply(source[0].high.lane[l], source[1].high.lane[l], source[2].high.lane[l]);
  }
  w.defined = source[0].low_known & source[1].low_known & source[2].low_known;
  put_register(w, in.operand[0].index, source[0].low.lane);
  w.defined = source[0].high_known & source[1].high_known & source[2].high_known;
  put_register(w, in.operand[0].index + 1, source[0].high.lane);
}

// The low result is a word of the first source, the high one a word of the second.
void packed_move(Wave& w, const Instruction& in) {
  Pair a;
  Pair b;
  read_pair(w, in, 1, a);
  read_pair(w, in, 2, b);
  w.defined = a.low_known;
  put_register(w, in.operand[0].index, a.low.lane);
  w.defined = b.high_known;
  put_register(w, in.operand[0].index + 1, b.high.lane);
}

// Each source is an f32 or, where op_sel_hi says so, the half of a register that op_sel names.
template <int Result>
void mixed_fma(Wave& w, const Instruction& in) {
  Values<float> source[3];
  for (int k = 1; k <= 3; ++k) {
    const Operand& operand = in.operand[static_cast<std::size_t>(k)];
    Values<U32> bits;
    raw32(w, in, k, bits.lane);
    const bool half = in.op_sel_hi != ~0U && (in.op_sel_hi >> (k - 1) & 1U) != 0;
    const unsigned shift = (in.op_sel >> (k - 1) & 1U) * 16;
    for (int l = 0; l < w.lanes; ++l) {
      const U32 raw = operand.kind == Kind::Constant && half ? operand.bits16 : bits.lane[l];
      float value = half ? from_half(static_cast<U16>(raw >> shift)) : std::bit_cast<float>(raw);
      value = operand.absolute ? std::fabs(value) : value;
      value = operand.negate ? -value : value;
      source[k - 1].lane[l] = w.flush32 && !half ? flushed(value) : value;
    }
  }
  Values<U32> out;
  const Lanes32& old = w.v[static_cast<std::size_t>(in.operand[0].index)];
  for (int l = 0; l < w.lanes; ++l) {
    const float value =
        scaled_and_clamped(in, std::fma(source[0].lane[l], source[1].lane[l], source[2].lane[l]));
    const U32 rest = old[static_cast<std::size_t>(l)];
    const U32 half = to_half(static_cast<double>(value));
    out.lane[l] = Result == 0   ? std::bit_cast<U32>(value)
                  : Result == 1 ? (rest & 0xffff0000U) | half
                                : (rest & 0xffffU) | half << 16;
  }
  put_register(w, in.operand[0].index, out.lane);
}

I32 byte_at(U32 value, unsigned i, bool is_signed) {
  const U32 byte = value >> (8 * i) & 255U;
  return is_signed ? static_cast<std::int8_t>(byte) : static_cast<I32>(byte);
}

template <bool Signed>
U32 dot4(U32 a, U32 b, U32 c) {
  for (unsigned i = 0; i < 4; ++i) {
    c += static_cast<U32>(byte_at(a, i, Signed) * byte_at(b, i, Signed));
  }
  return c;
}

float dot2(U32 a, U32 b, float c) {
  const double low = static_cast<double>(from_half(static_cast<U16>(a))) *
                     static_cast<double>(from_half(static_cast<U16>(b)));
  const double high = static_cast<double>(from_half(static_cast<U16>(a >> 16))) *
                      static_cast<double>(from_half(static_cast<U16>(b >> 16)));
  return static_cast<float>(low + high + static_cast<double>(c));
}

float dot2_bf16(U32 a, U32 b, float c) {
  const double low = static_cast<double>(from_bf16(static_cast<U16>(a))) *
                     static_cast<double>(from_bf16(static_cast<U16>(b)));
  const double high = static_cast<double>(from_bf16(static_cast<U16>(a >> 16))) *
                      static_cast<double>(from_bf16(static_cast<U16>(b >> 16)));
  return static_cast<float>(low + high + static_cast<double>(c));
}

}  // namespace

void add_packed(Table& rows) {
  add_packed16(rows);
  rows["v_pk_add_f32"] = {packed32<[](float a, float b, float) { return a + b; }>};
  rows["v_pk_mul_f32"] = {packed32<[](float a, float b, float) { return a * b; }>};
  rows["v_pk_fma_f32"] = {packed32<[](float a, float b, float c) { return std::fma(a, b, c); }>};
  rows["v_pk_mov_b32"] = {packed_move};
  rows["v_fma_mix_f32"] = {mixed_fma<0>};
  rows["v_fma_mixlo_f16"] = {mixed_fma<1>};
  rows["v_fma_mixhi_f16"] = {mixed_fma<2>};
  rows["v_dot2_f32_f16"] = {lane_by_lane<[](U32 a, U32 b, float c) { return dot2(a, b, c); }>()};
  rows["v_dot2c_f32_f16"] = {rows["v_dot2_f32_f16"].run, 1, Effect::Partial};
  rows["v_dot2acc_f32_f16"] = rows["v_dot2c_f32_f16"];
  rows["v_dot2_f32_bf16"] = {
      lane_by_lane<[](U32 a, U32 b, float c) { return dot2_bf16(a, b, c); }>()};
  rows["v_dot4_i32_i8"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return dot4<true>(a, b, c); }>()};
  rows["v_dot4c_i32_i8"] = {rows["v_dot4_i32_i8"].run, 1, Effect::Partial};
  rows["v_dot4_u32_u8"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return dot4<false>(a, b, c); }>()};
}

}  // namespace amdgpu_emulator
