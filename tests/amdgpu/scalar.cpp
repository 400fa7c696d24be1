// The scalar unit: 32- and 64-bit arithmetic, comparisons, moves, and masks of lanes. Whether bits were ever written is
// kept for each bit, since masks of lanes are built from pieces.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;
using I64 = std::int64_t;

template <class T>
T read(const Wave& w, const Operand& operand) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(scalar64(w, operand));
  } else {
    return static_cast<T>(scalar32(w, operand));
  }
}

template <class T>
void write(Wave& w, const Operand& operand, T value, U64 defined) {
  put_scalar(w, operand.index, static_cast<U32>(value), static_cast<U32>(defined));
  if (sizeof(T) == 8 && operand.index != kNull) {
    put_scalar(w, operand.index + 1, static_cast<U32>(static_cast<U64>(value) >> 32),
               static_cast<U32>(defined >> 32));
  }
}

U64 defined_bits(const Wave& w, const Operand& operand) {
  if (operand.kind == Kind::Scc) {
    return w.scc_defined ? ~0ULL : 0;
  }
  if (operand.kind != Kind::Scalar || operand.index >= kNull) {
    return ~0ULL;
  }
  const auto i = static_cast<std::size_t>(operand.index);
  return w.bits_defined[i] | static_cast<U64>(operand.count > 1 ? w.bits_defined[i + 1] : ~0U)
                                 << 32;
}

// Results of one source or two. `Sets` says how scc follows.
enum class Sets : std::uint8_t { Nothing, NonZero };

template <class T, auto F, Sets sets>
void unary(Wave& w, const Instruction& in) {
  const auto value = F(read<T>(w, in.operand[1]));
  const U64 known = defined_bits(w, in.operand[1]);
  const bool bit_by_bit = in.name.starts_with("s_not") || in.name.starts_with("s_mov");
  const U64 defined = bit_by_bit ? known : w.defined != 0 ? ~0ULL : 0;
  write(w, in.operand[0], value, defined);
  if (sets == Sets::NonZero) {
    w.scc = value != 0;
    w.scc_defined = w.defined != 0;
  }
}

template <class T, auto F, Sets sets>
void binary(Wave& w, const Instruction& in) {
  const auto value = F(read<T>(w, in.operand[1]), read<T>(w, in.operand[2]));
  write(w, in.operand[0], value, w.defined != 0 ? ~0ULL : 0);
  if (sets == Sets::NonZero) {
    w.scc = value != 0;
    w.scc_defined = w.defined != 0;
  }
}

// Bitwise: a bit is known where both sources are, or where one alone decides it.
template <class T, bool IsAnd, bool IsXor, bool InvertSecond, bool InvertResult>
void bitwise_of(Wave& w, const Operand& to, T a, T b, U64 known_a, U64 known_b) {
  b = InvertSecond ? static_cast<T>(~b) : b;
  T value = IsXor ? a ^ b : IsAnd ? a & b : a | b;
  const T decides_a = IsAnd ? static_cast<T>(~a) : a;
  const T decides_b = IsAnd ? static_cast<T>(~b) : b;
  U64 known = known_a & known_b;
  if (!IsXor) {
    known |= (known_a & decides_a) | (known_b & decides_b);
  }
  if (sizeof(T) == 4) {
    known |= 0xffffffff00000000ULL;
  }
  value = InvertResult ? static_cast<T>(~value) : value;
  write(w, to, value, known);
  w.scc = value != 0;
  w.scc_defined = known == ~0ULL;
}

template <class T, bool IsAnd, bool IsXor, bool InvertSecond, bool InvertResult>
void bitwise(Wave& w, const Instruction& in) {
  bitwise_of<T, IsAnd, IsXor, InvertSecond, InvertResult>(
      w, in.operand[0], read<T>(w, in.operand[1]), read<T>(w, in.operand[2]),
      defined_bits(w, in.operand[1]), defined_bits(w, in.operand[2]));
}

template <bool IsAnd, bool IsXor, bool InvertSecond, bool InvertResult>
void add_bitwise(Table& rows, const std::string& name) {
  rows[name + "_b32"] = {bitwise<U32, IsAnd, IsXor, InvertSecond, InvertResult>};
  rows[name + "_b64"] = {bitwise<U64, IsAnd, IsXor, InvertSecond, InvertResult>};
}

// The old exec goes to the result, the new one is F(source, exec).
template <class T, auto F>
void save_exec(Wave& w, const Instruction& in) {
  const T source = read<T>(w, in.operand[1]);
  const T old = static_cast<T>(w.exec);
  const T value = F(source, old);
  const U64 known = defined_bits(w, in.operand[1]) | (sizeof(T) == 4 ? 0xffffffff00000000ULL : 0);
  // Lanes that are off stay off with `and`, whatever the mask says of them.
  if ((known | ~w.exec) != ~0ULL) {
    throw Fault("a branch depends on a register that was never written");
  }
  write(w, in.operand[0], old, ~0ULL);
  w.exec = value;
  w.scc = value != 0;
  w.scc_defined = true;
}

template <class T>
void add_save_exec(Table& rows, const std::string& suffix) {
  rows["s_and_saveexec" + suffix] = {save_exec<T, [](T a, T e) { return static_cast<T>(a & e); }>};
  rows["s_or_saveexec" + suffix] = {save_exec<T, [](T a, T e) { return static_cast<T>(a | e); }>};
  rows["s_xor_saveexec" + suffix] = {save_exec<T, [](T a, T e) { return static_cast<T>(a ^ e); }>};
  rows["s_andn2_saveexec" + suffix] = {
      save_exec<T, [](T a, T e) { return static_cast<T>(a & ~e); }>};
  rows["s_orn2_saveexec" + suffix] = {
      save_exec<T, [](T a, T e) { return static_cast<T>(a | ~e); }>};
  rows["s_andn1_saveexec" + suffix] = {
      save_exec<T, [](T a, T e) { return static_cast<T>(~a & e); }>};
  rows["s_orn1_saveexec" + suffix] = {
      save_exec<T, [](T a, T e) { return static_cast<T>(~a | e); }>};
  rows["s_nand_saveexec" + suffix] = {
      save_exec<T, [](T a, T e) { return static_cast<T>(~(a & e)); }>};
  rows["s_nor_saveexec" + suffix] = {
      save_exec<T, [](T a, T e) { return static_cast<T>(~(a | e)); }>};
  // gfx11's names.
  rows["s_and_not1_saveexec" + suffix] = rows["s_andn2_saveexec" + suffix];
  rows["s_or_not1_saveexec" + suffix] = rows["s_orn2_saveexec" + suffix];
  rows["s_and_not0_saveexec" + suffix] = rows["s_andn1_saveexec" + suffix];
  rows["s_or_not0_saveexec" + suffix] = rows["s_orn1_saveexec" + suffix];
}

// Sums of 32 bits whose scc is a carry or an overflow.
template <auto F>
void with_carry(Wave& w, const Instruction& in) {
  const bool known = w.defined != 0;
  bool carry = w.scc;
  const U32 value = F(read<U32>(w, in.operand[1]), read<U32>(w, in.operand[2]), carry);
  write(w, in.operand[0], value, known ? ~0ULL : 0);
  w.scc = carry;
  w.scc_defined = known;
}

bool overflows(I64 value) { return value != static_cast<I32>(value); }

void add_sums(Table& rows) {
  rows["s_add_u32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    const U64 sum = U64(a) + b;
    c = (sum >> 32) != 0;
    return static_cast<U32>(sum);
  }>};
  rows["s_addc_u32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    const U64 sum = U64(a) + b + (c ? 1 : 0);
    c = (sum >> 32) != 0;
    return static_cast<U32>(sum);
  }>};
  rows["s_sub_u32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = (b > a);
    return a - b;
  }>};
  rows["s_subb_u32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    const U64 subtracted = U64(b) + (c ? 1 : 0);
    c = (subtracted > a);
    return static_cast<U32>(a - subtracted);
  }>};
  rows["s_add_i32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = overflows(I64(I32(a)) + I32(b));
    return a + b;
  }>};
  rows["s_sub_i32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = overflows(I64(I32(a)) - I32(b));
    return a - b;
  }>};
  rows["s_absdiff_i32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    const I64 d = I64(I32(a)) - I32(b);
    const U32 value = static_cast<U32>(d < 0 ? -d : d);
    c = value != 0;
    return value;
  }>};
  rows["s_min_u32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = a < b;
    return std::min(a, b);
  }>};
  rows["s_max_u32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = (a > b);
    return std::max(a, b);
  }>};
  rows["s_min_i32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = I32(a) < I32(b);
    return c ? a : b;
  }>};
  rows["s_max_i32"] = {with_carry<[](U32 a, U32 b, bool& c) {
    c = (I32(a) > I32(b));
    return c ? a : b;
  }>};
  const auto shifted_sum = []<U32 Shift>() {
    return &with_carry<[](U32 a, U32 b, bool& c) {
      const U64 sum = (U64(a) << Shift) + b;
      c = (sum >> 32) != 0;
      return static_cast<U32>(sum);
    }>;
  };
  rows["s_lshl1_add_u32"] = {shifted_sum.operator()<1>()};
  rows["s_lshl2_add_u32"] = {shifted_sum.operator()<2>()};
  rows["s_lshl3_add_u32"] = {shifted_sum.operator()<3>()};
  rows["s_lshl4_add_u32"] = {shifted_sum.operator()<4>()};
}

template <class T>
T field_mask(U32 width) {
  return width >= sizeof(T) * 8 ? static_cast<T>(~T(0)) : static_cast<T>((T(1) << width) - 1);
}

void add_shifts(Table& rows) {
  rows["s_lshl_b32"] = {binary<U32, [](U32 a, U32 b) { return a << (b & 31U); }, Sets::NonZero>};
  rows["s_lshr_b32"] = {binary<U32, [](U32 a, U32 b) { return (a >> (b & 31U)); }, Sets::NonZero>};
  rows["s_ashr_i32"] = {binary<I32, [](I32 a, I32 b) { return (a >> (b & 31)); }, Sets::NonZero>};
  rows["s_lshl_b64"] = {binary<U64, [](U64 a, U64 b) { return a << (b & 63U); }, Sets::NonZero>};
  rows["s_lshr_b64"] = {binary<U64, [](U64 a, U64 b) { return (a >> (b & 63U)); }, Sets::NonZero>};
  rows["s_ashr_i64"] = {binary<I64, [](I64 a, I64 b) { return (a >> (b & 63)); }, Sets::NonZero>};
  rows["s_bfe_u32"] = {
      binary<U32, [](U32 a, U32 b) { return (a >> (b & 31U)) & field_mask<U32>((b >> 16) & 127U); },
             Sets::NonZero>};
  rows["s_bfe_i32"] = {
      binary<U32,
             [](U32 a, U32 b) {
               const U32 width = std::min((b >> 16) & 127U, 32U);
               return width == 0
                          ? 0
                          : static_cast<U32>(static_cast<I32>((a >> (b & 31U)) << (32 - width)) >>
                                             (32 - width));
             },
             Sets::NonZero>};
  rows["s_bfe_u64"] = {binary<U64,
                              [](U64 a, U64 b) {
                                return (a >> (b & 63U)) &
                                       field_mask<U64>(static_cast<U32>(b >> 16) & 127U);
                              },
                              Sets::NonZero>};
  rows["s_bfe_i64"] = {
      binary<U64,
             [](U64 a, U64 b) {
               const U32 width = std::min(static_cast<U32>(b >> 16) & 127U, 64U);
               return width == 0
                          ? 0
                          : static_cast<U64>(static_cast<I64>((a >> (b & 63U)) << (64 - width)) >>
                                             (64 - width));
             },
             Sets::NonZero>};
  rows["s_bfm_b32"] = {
      binary<U32, [](U32 a, U32 b) { return field_mask<U32>(a & 31U) << (b & 31U); },
             Sets::Nothing>};
  rows["s_bfm_b64"] = {
      binary<U64,
             [](U64 a, U64 b) { return field_mask<U64>(static_cast<U32>(a) & 63U) << (b & 63U); },
             Sets::Nothing>};
  rows["s_mul_i32"] = {binary<U32, [](U32 a, U32 b) { return a * b; }, Sets::Nothing>};
  rows["s_mul_hi_u32"] = {
      binary<U32, [](U32 a, U32 b) { return static_cast<U32>((U64(a) * b) >> 32); },
             Sets::Nothing>};
  rows["s_mul_hi_i32"] = {binary<U32,
                                 [](U32 a, U32 b) {
                                   return static_cast<U32>(static_cast<U64>(I64(I32(a)) * I32(b)) >>
                                                           32);
                                 },
                                 Sets::Nothing>};
  rows["s_pack_ll_b32_b16"] = {
      binary<U32, [](U32 a, U32 b) { return (a & 0xffffU) | b << 16; }, Sets::Nothing>};
  rows["s_pack_lh_b32_b16"] = {
      binary<U32, [](U32 a, U32 b) { return (a & 0xffffU) | (b & 0xffff0000U); }, Sets::Nothing>};
  rows["s_pack_hh_b32_b16"] = {
      binary<U32, [](U32 a, U32 b) { return (a >> 16 | (b & 0xffff0000U)); }, Sets::Nothing>};
  rows["s_pack_hl_b32_b16"] = {
      binary<U32, [](U32 a, U32 b) { return (a >> 16 | b << 16); }, Sets::Nothing>};
}

U64 whole_quads(U64 mask) {
  U64 any = mask | mask >> 1 | mask >> 2 | mask >> 3;
  any &= 0x1111111111111111ULL;
  return any * 15U;
}

void add_unary(Table& rows) {
  rows["s_mov_b32"] = {unary<U32, [](U32 a) { return a; }, Sets::Nothing>};
  rows["s_mov_b64"] = {unary<U64, [](U64 a) { return a; }, Sets::Nothing>};
  rows["s_not_b32"] = {unary<U32, [](U32 a) { return ~a; }, Sets::NonZero>};
  rows["s_not_b64"] = {unary<U64, [](U64 a) { return ~a; }, Sets::NonZero>};
  rows["s_wqm_b32"] = {
      unary<U32, [](U32 a) { return static_cast<U32>(whole_quads(a)); }, Sets::NonZero>};
  rows["s_wqm_b64"] = {unary<U64, [](U64 a) { return whole_quads(a); }, Sets::NonZero>};
  rows["s_brev_b32"] = {unary<U32,
                              [](U32 a) {
                                U32 out = 0;
                                for (unsigned i = 0; i < 32; ++i) {
                                  out |= ((a >> i) & 1U) << (31 - i);
                                }
                                return out;
                              },
                              Sets::Nothing>};
  rows["s_brev_b64"] = {unary<U64,
                              [](U64 a) {
                                U64 out = 0;
                                for (unsigned i = 0; i < 64; ++i) {
                                  out |= ((a >> i) & 1U) << (63 - i);
                                }
                                return out;
                              },
                              Sets::Nothing>};
  rows["s_abs_i32"] = {
      unary<U32, [](U32 a) { return (a & 0x80000000U) != 0 ? 0U - a : a; }, Sets::NonZero>};
  rows["s_sext_i32_i8"] = {
      unary<U32, [](U32 a) { return static_cast<U32>(static_cast<std::int8_t>(a)); },
            Sets::Nothing>};
  rows["s_sext_i32_i16"] = {
      unary<U32, [](U32 a) { return static_cast<U32>(static_cast<std::int16_t>(a)); },
            Sets::Nothing>};
  rows["s_bcnt1_i32_b32"] = {
      unary<U32, [](U32 a) { return static_cast<U32>(std::popcount(a)); }, Sets::NonZero>};
  rows["s_bcnt1_i32_b64"] = {
      unary<U64, [](U64 a) { return static_cast<U32>(std::popcount(a)); }, Sets::NonZero>};
  rows["s_bcnt0_i32_b32"] = {
      unary<U32, [](U32 a) { return static_cast<U32>(std::popcount(~a)); }, Sets::NonZero>};
  rows["s_bcnt0_i32_b64"] = {
      unary<U64, [](U64 a) { return static_cast<U32>(std::popcount(~a)); }, Sets::NonZero>};
  rows["s_ff1_i32_b32"] = {
      unary<U32, [](U32 a) { return a == 0 ? ~0U : static_cast<U32>(std::countr_zero(a)); },
            Sets::Nothing>};
  rows["s_ff1_i32_b64"] = {
      unary<U64, [](U64 a) { return a == 0 ? ~0U : static_cast<U32>(std::countr_zero(a)); },
            Sets::Nothing>};
  rows["s_flbit_i32_b32"] = {
      unary<U32, [](U32 a) { return a == 0 ? ~0U : static_cast<U32>(std::countl_zero(a)); },
            Sets::Nothing>};
  rows["s_flbit_i32_b64"] = {
      unary<U64, [](U64 a) { return a == 0 ? ~0U : static_cast<U32>(std::countl_zero(a)); },
            Sets::Nothing>};
  rows["s_flbit_i32"] = {unary<U32,
                               [](U32 a) {
                                 const U32 flipped = (a >> 31) != 0 ? ~a : a;
                                 return flipped == 0 ? ~0U
                                                     : static_cast<U32>(std::countl_zero(flipped));
                               },
                               Sets::Nothing>};
  rows["s_flbit_i32_i64"] = {unary<U64,
                                   [](U64 a) {
                                     const U64 flipped = (a >> 63) != 0 ? ~a : a;
                                     return flipped == 0
                                                ? ~0U
                                                : static_cast<U32>(std::countl_zero(flipped));
                                   },
                                   Sets::Nothing>};
  rows["s_ctz_i32_b32"] = rows["s_ff1_i32_b32"];
  rows["s_ctz_i32_b64"] = rows["s_ff1_i32_b64"];
  rows["s_clz_i32_u32"] = rows["s_flbit_i32_b32"];
  rows["s_clz_i32_u64"] = rows["s_flbit_i32_b64"];
  rows["s_cls_i32"] = rows["s_flbit_i32"];
  rows["s_cls_i32_i64"] = rows["s_flbit_i32_i64"];
}

template <class T>
void select_by_scc(Wave& w, const Instruction& in) {
  const Operand& chosen = in.operand[w.scc ? 1 : 2];
  write(w, in.operand[0], read<T>(w, chosen), w.scc_defined ? defined_bits(w, chosen) : 0);
}

template <class T>
void move_if_scc(Wave& w, const Instruction& in) {
  if (w.scc) {
    write(w, in.operand[0], read<T>(w, in.operand[1]), defined_bits(w, in.operand[1]));
  }
}

template <class T, bool Set>
void set_bit(Wave& w, const Instruction& in) {
  const auto bit = static_cast<T>(T(1) << (read<U32>(w, in.operand[1]) % (8 * sizeof(T))));
  const T old = read<T>(w, in.operand[0]);
  write(w, in.operand[0], static_cast<T>(Set ? old | bit : old & ~bit),
        defined_bits(w, in.operand[0]) | bit);
}

void move_k(Wave& w, const Instruction& in) {
  write(w, in.operand[0], static_cast<U32>(static_cast<std::int16_t>(in.operand[1].bits32)), ~0ULL);
}

template <auto F>
void immediate(Wave& w, const Instruction& in) {
  const auto k = static_cast<I32>(static_cast<std::int16_t>(in.operand[1].bits32));
  const I32 old = read<I32>(w, in.operand[0]);
  bool carry = w.scc;
  const I32 value = F(old, k, carry);
  write(w, in.operand[0], static_cast<U32>(value), w.defined != 0 ? ~0ULL : 0);
  w.scc_defined = in.name == "s_mulk_i32" ? w.scc_defined : w.defined != 0;
  w.scc = carry;
}

template <class T, auto F>
void compare(Wave& w, const Instruction& in) {
  w.scc = F(read<T>(w, in.operand[0]), read<T>(w, in.operand[1]));
  w.scc_defined = w.defined != 0;
}

// s_cmpk's constant is of 16 bits, signed or not as the comparison.
template <class T, auto F>
void compare_k(Wave& w, const Instruction& in) {
  const U32 bits = in.operand[1].bits32 & 0xffffU;
  const T k =
      std::is_signed_v<T> ? static_cast<T>(static_cast<std::int16_t>(bits)) : static_cast<T>(bits);
  w.scc = F(read<T>(w, in.operand[0]), k);
  w.scc_defined = w.defined != 0;
}

template <class T, auto F>
void add_comparison(Table& rows, const std::string& name) {
  rows["s_cmp_" + name] = {compare<T, F>, 0, Effect::NoResult};
  if constexpr (sizeof(T) == 4) {
    rows["s_cmpk_" + name] = {compare_k<T, F>, 0, Effect::NoResult};
  }
}

template <class T>
void add_ordered(Table& rows, const std::string& type) {
  add_comparison<T, [](T a, T b) { return a == b; }>(rows, "eq_" + type);
  add_comparison<T, [](T a, T b) { return a != b; }>(rows, "lg_" + type);
  add_comparison<T, [](T a, T b) { return a < b; }>(rows, "lt_" + type);
  add_comparison<T, [](T a, T b) { return a <= b; }>(rows, "le_" + type);
  add_comparison<T, [](T a, T b) { return (a > b); }>(rows, "gt_" + type);
  add_comparison<T, [](T a, T b) { return a >= b; }>(rows, "ge_" + type);
}

void bit_is_set(Wave& w, const Instruction& in) {
  const bool wide = in.name.ends_with("b64");
  const U64 value = wide ? scalar64(w, in.operand[0]) : scalar32(w, in.operand[0]);
  const U32 bit = scalar32(w, in.operand[1]) & (wide ? 63U : 31U);
  w.scc = ((value >> bit) & 1U) == (in.name.starts_with("s_bitcmp1") ? 1U : 0U);
  w.scc_defined = ((defined_bits(w, in.operand[0]) >> bit) & 1U) != 0;
}

}  // namespace

void add_scalar(Table& rows) {
  add_bitwise<true, false, false, false>(rows, "s_and");
  add_bitwise<false, false, false, false>(rows, "s_or");
  add_bitwise<false, true, false, false>(rows, "s_xor");
  add_bitwise<true, false, true, false>(rows, "s_andn2");
  add_bitwise<false, false, true, false>(rows, "s_orn2");
  add_bitwise<true, false, true, false>(rows, "s_and_not1");
  add_bitwise<false, false, true, false>(rows, "s_or_not1");
  add_bitwise<true, false, false, true>(rows, "s_nand");
  add_bitwise<false, false, false, true>(rows, "s_nor");
  add_bitwise<false, true, false, true>(rows, "s_xnor");
  add_save_exec<U32>(rows, "_b32");
  add_save_exec<U64>(rows, "_b64");
  add_sums(rows);
  add_shifts(rows);
  add_unary(rows);
  rows["s_cselect_b32"] = {select_by_scc<U32>};
  rows["s_cselect_b64"] = {select_by_scc<U64>};
  rows["s_cmov_b32"] = {move_if_scc<U32>};
  rows["s_cmov_b64"] = {move_if_scc<U64>};
  rows["s_bitset1_b32"] = {set_bit<U32, true>, 1, Effect::Partial};
  rows["s_bitset0_b32"] = {set_bit<U32, false>, 1, Effect::Partial};
  rows["s_bitset1_b64"] = {set_bit<U64, true>, 1, Effect::Partial};
  rows["s_bitset0_b64"] = {set_bit<U64, false>, 1, Effect::Partial};
  rows["s_movk_i32"] = {move_k};
  rows["s_addk_i32"] = {immediate<[](I32 a, I32 k, bool& c) {
                          c = overflows(I64(a) + k);
                          return static_cast<I32>(U32(a) + U32(k));
                        }>,
                        1, Effect::Partial};
  rows["s_mulk_i32"] = {
      immediate<[](I32 a, I32 k, bool&) { return static_cast<I32>(U32(a) * U32(k)); }>, 1,
      Effect::Partial};
  add_ordered<U32>(rows, "u32");
  add_ordered<I32>(rows, "i32");
  add_comparison<U64, [](U64 a, U64 b) { return a == b; }>(rows, "eq_u64");
  add_comparison<U64, [](U64 a, U64 b) { return a != b; }>(rows, "lg_u64");
  for (const char* name : {"s_bitcmp1_b32", "s_bitcmp0_b32", "s_bitcmp1_b64", "s_bitcmp0_b64"}) {
    rows[name] = {bit_is_set, 0, Effect::NoResult};
  }
}

}  // namespace amdgpu_emulator
