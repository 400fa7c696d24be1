// Integers of 16 and 32 bits, and bitwise operations.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U16 = std::uint16_t;
using I16 = std::int16_t;
using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;
using I64 = std::int64_t;

I32 extended24(U32 a) { return static_cast<I32>(a << 8) >> 8; }

// Sums: `clamp` saturates at the bounds of the type.
template <class T, auto F>
void saturating(Wave& w, const Instruction& in) {
  Values<T> a;
  Values<T> b;
  read_source(w, in, 1, a.lane);
  read_source(w, in, 2, b.lane);
  for (int l = 0; l < w.lanes; ++l) {
    const I64 exact = F(static_cast<I64>(a.lane[l]), static_cast<I64>(b.lane[l]));
    const I64 low = std::numeric_limits<T>::min();
    const I64 high = std::numeric_limits<T>::max();
    a.lane[l] = static_cast<T>(in.clamp ? std::clamp(exact, low, high) : exact);
  }
  write_result(w, in, 0, a.lane);
}

template <class T>
constexpr Handler sum() {
  return &saturating<T, [](I64 a, I64 b) { return a + b; }>;
}
template <class T>
constexpr Handler difference() {
  return &saturating<T, [](I64 a, I64 b) { return a - b; }>;
}
template <class T>
constexpr Handler reversed_difference() {
  return &saturating<T, [](I64 a, I64 b) { return b - a; }>;
}

template <auto F>
void with_carry(Wave& w, const Instruction& in) {
  Values<U32> a;
  Values<U32> b;
  read_source(w, in, 2, a.lane);
  read_source(w, in, 3, b.lane);
  const U64 carries = in.operands > 4 ? get_mask(w, in.operand[4]) : 0;
  if (in.operands > 4 && in.operand[4].kind == Kind::Scalar) {
    // Each lane depends on its own bit alone.
    const auto i = static_cast<std::size_t>(in.operand[4].index);
    const U64 known =
        w.bits_defined[i] | static_cast<U64>(w.lanes == 64 ? w.bits_defined[i + 1] : 0) << 32;
    w.defined = known;
    for (int k = 2; k < 4; ++k) {
      const Operand& source = in.operand[static_cast<std::size_t>(k)];
      w.defined &= source.kind == Kind::Vector
                       ? w.lane_defined[static_cast<std::size_t>(source.index)]
                       : ~0ULL;
    }
  }
  U64 mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const U64 exact = F(U64(a.lane[l]), U64(b.lane[l]), (carries >> l) & 1U);
    a.lane[l] = static_cast<U32>(exact);
    mask |= ((exact >> 32) & 1U) << l;
  }
  write_result(w, in, 0, a.lane);
  put_mask(w, in.operand[1], mask);
}

void add_sums(Table& rows) {
  rows["v_add_u32"] = {sum<U32>()};
  rows["v_sub_u32"] = {difference<U32>()};
  rows["v_subrev_u32"] = {reversed_difference<U32>()};
  rows["v_add_i32"] = {sum<I32>()};
  rows["v_sub_i32"] = {difference<I32>()};
  rows["v_add_u16"] = {sum<U16>()};
  rows["v_sub_u16"] = {difference<U16>()};
  rows["v_subrev_u16"] = {reversed_difference<U16>()};
  rows["v_add_i16"] = {sum<I16>()};
  rows["v_sub_i16"] = {difference<I16>()};
  for (const char* name : {"add", "sub", "subrev"}) {
    for (const char* type : {"u32", "i32", "u16", "i16"}) {
      const std::string old = std::string("v_") + name + "_" + type;
      if (rows.contains(old)) {
        rows[std::string("v_") + name + "_nc_" + type] = rows[old];
      }
    }
  }
  const auto add = [](U64 a, U64 b, U64 c) { return a + b + c; };
  const auto subtract = [](U64 a, U64 b, U64 c) { return a - b - c; };
  const auto reversed = [](U64 a, U64 b, U64 c) { return b - a - c; };
  for (const char* name : {"v_add_co_u32", "v_addc_co_u32", "v_add_co_ci_u32"}) {
    rows[name] = {with_carry<add>, 2};
  }
  for (const char* name : {"v_sub_co_u32", "v_subb_co_u32", "v_sub_co_ci_u32"}) {
    rows[name] = {with_carry<subtract>, 2};
  }
  for (const char* name : {"v_subrev_co_u32", "v_subbrev_co_u32", "v_subrev_co_ci_u32"}) {
    rows[name] = {with_carry<reversed>, 2};
  }
  rows["v_add3_u32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return a + b + c; }>()};
  rows["v_add_lshl_u32"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return (a + b) << (c & 31U); }>()};
  rows["v_lshl_add_u32"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return (a << (b & 31U)) + c; }>()};
  rows["v_xad_u32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return (a ^ b) + c; }>()};
}

void add_products(Table& rows) {
  rows["v_mul_lo_u32"] = {lane_by_lane<[](U32 a, U32 b) { return a * b; }>()};
  rows["v_mul_hi_u32"] = {
      lane_by_lane<[](U32 a, U32 b) { return static_cast<U32>(U64(a) * b >> 32); }>()};
  rows["v_mul_hi_i32"] = {
      lane_by_lane<[](I32 a, I32 b) { return static_cast<U32>(U64(I64(a) * b) >> 32); }>()};
  rows["v_mul_u32_u24"] = {
      lane_by_lane<[](U32 a, U32 b) { return (a & 0xffffffU) * (b & 0xffffffU); }>()};
  rows["v_mul_i32_i24"] = {
      lane_by_lane<[](U32 a, U32 b) { return U32(extended24(a)) * U32(extended24(b)); }>()};
  rows["v_mul_hi_u32_u24"] = {lane_by_lane<[](U32 a, U32 b) {
    return static_cast<U32>(U64(a & 0xffffffU) * (b & 0xffffffU) >> 32);
  }>()};
  rows["v_mul_hi_i32_i24"] = {lane_by_lane<[](U32 a, U32 b) {
    return static_cast<U32>(U64(I64(extended24(a)) * extended24(b)) >> 32);
  }>()};
  rows["v_mad_u32_u24"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return (a & 0xffffffU) * (b & 0xffffffU) + c; }>()};
  rows["v_mad_i32_i24"] = {lane_by_lane<[](U32 a, U32 b, U32 c) {
    return U32(extended24(a)) * U32(extended24(b)) + c;
  }>()};
  rows["v_mul_lo_u16"] = {
      lane_by_lane<[](U16 a, U16 b) { return static_cast<U16>(U32(a) * b); }>()};
  rows["v_mad_u16"] = {
      lane_by_lane<[](U16 a, U16 b, U16 c) { return static_cast<U16>(U32(a) * b + c); }>()};
  rows["v_mad_i16"] = rows["v_mad_u16"];
  rows["v_mad_legacy_u16"] = rows["v_mad_u16"];
  rows["v_mad_u32_u16"] = {lane_by_lane<[](U16 a, U16 b, U32 c) { return U32(a) * b + c; }>()};
  rows["v_mad_i32_i16"] = {lane_by_lane<[](I16 a, I16 b, U32 c) { return U32(I32(a) * b) + c; }>()};
  rows["v_sad_u32"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return (a > b ? a - b : b - a) + c; }>()};
}

template <class T>
void add_extremes(Table& rows, const std::string& type) {
  rows["v_min_" + type] = {lane_by_lane<[](T a, T b) { return std::min(a, b); }>()};
  rows["v_max_" + type] = {lane_by_lane<[](T a, T b) { return std::max(a, b); }>()};
  rows["v_min3_" + type] = {
      lane_by_lane<[](T a, T b, T c) { return std::min(std::min(a, b), c); }>()};
  rows["v_max3_" + type] = {
      lane_by_lane<[](T a, T b, T c) { return std::max(std::max(a, b), c); }>()};
  rows["v_med3_" + type] = {lane_by_lane<[](T a, T b, T c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  }>()};
  rows["v_minmax_" + type] = {
      lane_by_lane<[](T a, T b, T c) { return std::max(std::min(a, b), c); }>()};
  rows["v_maxmin_" + type] = {
      lane_by_lane<[](T a, T b, T c) { return std::min(std::max(a, b), c); }>()};
}

U32 bits_of(U32 value, U32 from, U32 width) {
  return width == 0 ? 0 : (value >> from) & (width >= 32 ? ~0U : (1U << width) - 1);
}

U32 signed_bits_of(U32 value, U32 from, U32 width) {
  if (width == 0) {
    return 0;
  }
  const U32 top = std::min(width, 32 - from);
  return static_cast<U32>(static_cast<I32>(value << (32 - from - top)) >> (32 - top));
}

// Byte `select` of the eight bytes of a (upper) and b; beyond these, signs and constants.
U32 permuted_byte(U64 bytes, U32 select) {
  if (select < 8) {
    return static_cast<U32>(bytes >> (8 * select)) & 255U;
  }
  if (select < 12) {
    return ((bytes >> (16 * (select - 8) + 15)) & 1U) != 0 ? 255U : 0;
  }
  return select == 12 ? 0 : 255U;
}

U32 permuted(U32 a, U32 b, U32 select) {
  const U64 bytes = static_cast<U64>(a) << 32 | b;
  U32 out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    out |= permuted_byte(bytes, (select >> (8 * i)) & 255U) << (8 * i);
  }
  return out;
}

U32 reversed_bits(U32 a) {
  U32 out = 0;
  for (unsigned i = 0; i < 32; ++i) {
    out |= ((a >> i) & 1U) << (31 - i);
  }
  return out;
}

void add_bitwise(Table& rows) {
  rows["v_and_b32"] = {lane_by_lane<[](U32 a, U32 b) { return a & b; }>()};
  rows["v_or_b32"] = {lane_by_lane<[](U32 a, U32 b) { return a | b; }>()};
  rows["v_xor_b32"] = {lane_by_lane<[](U32 a, U32 b) { return a ^ b; }>()};
  rows["v_xnor_b32"] = {lane_by_lane<[](U32 a, U32 b) { return ~(a ^ b); }>()};
  rows["v_not_b32"] = {lane_by_lane<[](U32 a) { return ~a; }>()};
  rows["v_and_b16"] = {lane_by_lane<[](U16 a, U16 b) { return static_cast<U16>(a & b); }>()};
  rows["v_or_b16"] = {lane_by_lane<[](U16 a, U16 b) { return static_cast<U16>(a | b); }>()};
  rows["v_xor_b16"] = {lane_by_lane<[](U16 a, U16 b) { return static_cast<U16>(a ^ b); }>()};
  rows["v_not_b16"] = {lane_by_lane<[](U16 a) { return static_cast<U16>(~a); }>()};
  rows["v_and_or_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return (a & b) | c; }>()};
  rows["v_or3_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return a | b | c; }>()};
  rows["v_xor3_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return a ^ b ^ c; }>()};
  rows["v_bfi_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return (a & b) | (~a & c); }>()};
  rows["v_bfm_b32"] = {
      lane_by_lane<[](U32 a, U32 b) { return ((1U << (a & 31U)) - 1) << (b & 31U); }>()};
  rows["v_bfe_u32"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return bits_of(a, b & 31U, c & 31U); }>()};
  rows["v_bfe_i32"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return signed_bits_of(a, b & 31U, c & 31U); }>()};
  rows["v_bfrev_b32"] = {lane_by_lane<[](U32 a) { return reversed_bits(a); }>()};
  rows["v_bcnt_u32_b32"] = {
      lane_by_lane<[](U32 a, U32 b) { return static_cast<U32>(std::popcount(a)) + b; }>()};
  rows["v_ffbh_u32"] = {
      lane_by_lane<[](U32 a) { return a == 0 ? ~0U : static_cast<U32>(std::countl_zero(a)); }>()};
  rows["v_ffbl_b32"] = {
      lane_by_lane<[](U32 a) { return a == 0 ? ~0U : static_cast<U32>(std::countr_zero(a)); }>()};
  rows["v_ffbh_i32"] = {lane_by_lane<[](U32 a) {
    const U32 flipped = (a >> 31) != 0 ? ~a : a;
    return flipped == 0 ? ~0U : static_cast<U32>(std::countl_zero(flipped));
  }>()};
  rows["v_clz_i32_u32"] = rows["v_ffbh_u32"];
  rows["v_ctz_i32_b32"] = rows["v_ffbl_b32"];
  rows["v_cls_i32"] = rows["v_ffbh_i32"];
  rows["v_perm_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) { return permuted(a, b, c); }>()};
  rows["v_alignbit_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) {
    return static_cast<U32>((U64(a) << 32 | b) >> (c & 31U));
  }>()};
  rows["v_alignbyte_b32"] = {lane_by_lane<[](U32 a, U32 b, U32 c) {
    return static_cast<U32>((U64(a) << 32 | b) >> (8 * (c & 3U)));
  }>()};
}

void add_shifts(Table& rows) {
  rows["v_lshlrev_b32"] = {lane_by_lane<[](U32 a, U32 b) { return b << (a & 31U); }>()};
  rows["v_lshrrev_b32"] = {lane_by_lane<[](U32 a, U32 b) { return (b >> (a & 31U)); }>()};
  rows["v_ashrrev_i32"] = {lane_by_lane<[](U32 a, I32 b) { return (b >> (a & 31U)); }>()};
  rows["v_lshlrev_b16"] = {
      lane_by_lane<[](U16 a, U16 b) { return static_cast<U16>(b << (a & 15U)); }>()};
  rows["v_lshrrev_b16"] = {
      lane_by_lane<[](U16 a, U16 b) { return static_cast<U16>(b >> (a & 15U)); }>()};
  rows["v_ashrrev_i16"] = {
      lane_by_lane<[](U16 a, I16 b) { return static_cast<I16>(b >> (a & 15U)); }>()};
  rows["v_lshl_or_b32"] = {
      lane_by_lane<[](U32 a, U32 b, U32 c) { return (a << (b & 31U)) | c; }>()};
}

}  // namespace

void add_integer(Table& rows) {
  add_sums(rows);
  add_products(rows);
  add_extremes<U32>(rows, "u32");
  add_extremes<I32>(rows, "i32");
  add_extremes<U16>(rows, "u16");
  add_extremes<I16>(rows, "i16");
  add_bitwise(rows);
  add_shifts(rows);
}

namespace {

// A word of the result depends on the same word of the sources alone, or also on that below (above, for shifts to the
// right): programs leave the other one unwritten where they need a half.
template <Handler Run, int Word>
void one_word_alone(Wave& w, const Instruction& in) {
  U64 known = ~0ULL;
  for (int k = in.results; k < in.operands; ++k) {
    known &= known_word(w, in.operand[static_cast<std::size_t>(k)], Word);
  }
  Run(w, in);
  mark_register(w, in.operand[0].index + Word, known);
}

void move_wide(Wave& w, const Instruction& in) {
  for (int word = 0; word < 2; ++word) {
    const Operand& source = in.operand[1];
    Values<U32> values;
    const U64 known = known_word(w, source, word);
    for (int l = 0; l < w.lanes; ++l) {
      values.lane[l] =
          source.kind == Kind::Vector
              ? w.v[static_cast<std::size_t>(source.index + word)][static_cast<std::size_t>(l)]
              : static_cast<U32>(scalar64(w, source) >> (32 * word));
    }
    put_register(w, in.operand[0].index + word, values.lane);
    mark_register(w, in.operand[0].index + word, known);
  }
}

template <class T, class Product>
void multiply_add(Wave& w, const Instruction& in) {
  Values<T> a;
  Values<T> b;
  Values<U64> c;
  read_source(w, in, 2, a.lane);
  read_source(w, in, 3, b.lane);
  read_source(w, in, 4, c.lane);
  U64 mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const Product product = Product(a.lane[l]) * b.lane[l];
    Product sum = 0;
    mask |= static_cast<U64>(__builtin_add_overflow(product, static_cast<Product>(c.lane[l]), &sum))
            << l;
    c.lane[l] = static_cast<U64>(sum);
  }
  write_result(w, in, 0, c.lane);
  put_mask(w, in.operand[1], mask);
}

}  // namespace

void add_wide_integer(Table& rows) {
  rows["v_mov_b64"] = {move_wide};
  rows["v_lshlrev_b64"] = {
      one_word_alone<lane_by_lane<[](U32 a, U64 b) { return b << (a & 63U); }>(), 0>};
  rows["v_lshrrev_b64"] = {
      one_word_alone<lane_by_lane<[](U32 a, U64 b) { return (b >> (a & 63U)); }>(), 1>};
  rows["v_ashrrev_i64"] = {
      one_word_alone<lane_by_lane<[](U32 a, I64 b) { return (b >> (a & 63U)); }>(), 1>};
  rows["v_lshl_add_u64"] = {
      one_word_alone<lane_by_lane<[](U64 a, U32 b, U64 c) { return (a << (b & 7U)) + c; }>(), 0>};
  rows["v_mad_u64_u32"] = {one_word_alone<multiply_add<U32, U64>, 0>, 2};
  rows["v_mad_i64_i32"] = {one_word_alone<multiply_add<I32, I64>, 0>, 2};
}

}  // namespace amdgpu_emulator
