// Comparisons to masks of lanes, choices by a mask, and moves of one register.
#include <cmath>
#include <cstdint>
#include <string>

#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

template <class T>
auto comparable(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return from_half(value.bits);
  } else {
    return value;
  }
}

// `SetsExec`: v_cmpx writes exec, too, on gfx9 beside its result.
template <class T, auto F, bool SetsExec>
void compare(Wave& w, const Instruction& in) {
  Values<T> a;
  Values<T> b;
  read_source(w, in, in.results, a.lane);
  read_source(w, in, in.results + 1, b.lane);
  U64 mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    mask |= static_cast<U64>(F(comparable(a.lane[l]), comparable(b.lane[l]))) << l;
  }
  if (in.results > 0) {
    put_mask(w, in.operand[0], mask);
  }
  if (SetsExec) {
    if ((w.defined & w.exec) != w.exec) {
      throw Fault("a branch depends on a register that was never written");
    }
    w.exec &= mask;
  }
}

template <class T, auto F>
void add_comparison(Table& rows, const std::string& name) {
  rows["v_cmp_" + name] = {compare<T, F, false>};
  rows["v_cmpx_" + name] = {compare<T, F, true>};
}

template <class T, class C>
void add_ordered(Table& rows, const std::string& type) {
  add_comparison<T, [](C a, C b) { return a < b; }>(rows, "lt_" + type);
  add_comparison<T, [](C a, C b) { return a == b; }>(rows, "eq_" + type);
  add_comparison<T, [](C a, C b) { return a <= b; }>(rows, "le_" + type);
  add_comparison<T, [](C a, C b) { return (a > b); }>(rows, "gt_" + type);
  add_comparison<T, [](C a, C b) { return a >= b; }>(rows, "ge_" + type);
  add_comparison<T, [](C, C) { return false; }>(rows, "f_" + type);
  add_comparison<T, [](C, C) { return true; }>(rows, "t_" + type);
  add_comparison<T, [](C, C) { return true; }>(rows, "tru_" + type);
}

template <class T, class C>
void add_floats(Table& rows, const std::string& type) {
  add_ordered<T, C>(rows, type);
  add_comparison<T, [](C a, C b) { return (a < b || a > b); }>(rows, "lg_" + type);
  add_comparison<T, [](C a, C b) { return !std::isnan(a) && !std::isnan(b); }>(rows, "o_" + type);
  add_comparison<T, [](C a, C b) { return std::isnan(a) || std::isnan(b); }>(rows, "u_" + type);
  add_comparison<T, [](C a, C b) { return !(a >= b); }>(rows, "nge_" + type);
  add_comparison<T, [](C a, C b) { return !(a < b || a > b); }>(rows, "nlg_" + type);
  add_comparison<T, [](C a, C b) { return !(a > b); }>(rows, "ngt_" + type);
  add_comparison<T, [](C a, C b) { return !(a <= b); }>(rows, "nle_" + type);
  add_comparison<T, [](C a, C b) { return !(a == b); }>(rows, "neq_" + type);
  add_comparison<T, [](C a, C b) { return !(a < b); }>(rows, "nlt_" + type);
}

template <class T>
void add_integers(Table& rows, const std::string& type) {
  add_ordered<T, T>(rows, type);
  add_comparison<T, [](T a, T b) { return a != b; }>(rows, "ne_" + type);
}

// Classes of floats: bit 0 a signalling NaN, 1 a quiet one, 2 -infinity, 3 -normal, 4 -denormal, 5 -0, 6 +0, 7 +denormal,
// 8 +normal, 9 +infinity.
unsigned float_class(U64 bits, int fraction_bits, int exponent_bits) {
  const U64 fraction = bits & ((1ULL << fraction_bits) - 1);
  const U64 field = bits >> fraction_bits & ((1ULL << exponent_bits) - 1);
  const bool negative = (bits >> (fraction_bits + exponent_bits) & 1U) != 0;
  if (field == (1ULL << exponent_bits) - 1) {
    if (fraction != 0) {
      return (fraction >> (fraction_bits - 1)) != 0 ? 1 : 0;
    }
    return negative ? 2 : 9;
  }
  if (field != 0) {
    return negative ? 3 : 8;
  }
  if (fraction != 0) {
    return negative ? 4 : 7;
  }
  return negative ? 5 : 6;
}

template <class T>
U64 plain_bits(T value) {
  if constexpr (sizeof(T) == 2) {
    return value.bits;
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<U32>(value);
  } else {
    return std::bit_cast<U64>(value);
  }
}

template <class T, int Fraction, int Exponent, bool SetsExec>
void compare_class(Wave& w, const Instruction& in) {
  Values<T> a;
  Values<U32> classes;
  const bool flush32 = w.flush32;
  const bool flush16_64 = w.flush16_64;
  w.flush32 = w.flush16_64 = false;  // the class is that of the bits as they are
  read_source(w, in, in.results, a.lane);
  w.flush32 = flush32;
  w.flush16_64 = flush16_64;
  raw32(w, in, in.results + 1, classes.lane);
  U64 mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const unsigned kind = float_class(plain_bits(a.lane[l]), Fraction, Exponent);
    mask |= static_cast<U64>(classes.lane[l] >> kind & 1U) << l;
  }
  if (in.results > 0) {
    put_mask(w, in.operand[0], mask);
  }
  if (SetsExec) {
    w.exec &= mask;
  }
}

U64 known_lanes(const Wave& w, const Operand& operand) {
  U64 known = ~0ULL;
  if (operand.kind == Kind::Vector) {
    for (int r = 0; r < operand.count; ++r) {
      known &= w.lane_defined[static_cast<std::size_t>(operand.index + r)];
    }
  } else if (operand.kind == Kind::Scalar && operand.index < kNull) {
    known = w.bits_defined[static_cast<std::size_t>(operand.index)] == ~0U ? ~0ULL : 0;
  }
  return known;
}

// A lane takes the second source where its bit is set, and what the other holds does not matter.
template <class T>
void choose(Wave& w, const Instruction& in) {
  Values<T> a;
  Values<T> b;
  read_source(w, in, 1, a.lane);
  read_source(w, in, 2, b.lane);
  Operand by = in.operand[3];
  if (in.operands < 4) {  // the halves of a dual instruction leave vcc out
    by.kind = Kind::Scalar;
    by.index = kVcc;
  }
  const U64 mask = get_mask(w, by);
  U64 known = ~0ULL;
  if (by.kind == Kind::Scalar && by.index < kNull) {
    const auto i = static_cast<std::size_t>(by.index);
    known = w.bits_defined[i] | static_cast<U64>(w.lanes == 64 ? w.bits_defined[i + 1] : 0) << 32;
  }
  for (int l = 0; l < w.lanes; ++l) {
    a.lane[l] = ((mask >> l) & 1U) != 0 ? b.lane[l] : a.lane[l];
  }
  if (in.move == LaneMove::None) {
    w.defined =
        known & ((known_lanes(w, in.operand[2]) & mask) | (known_lanes(w, in.operand[1]) & ~mask));
  }
  write_result(w, in, 0, a.lane);
}

// Moves v_cndmask's floats: modifiers apply to the bits of the sign.
void choose32(Wave& w, const Instruction& in) {
  const bool modified = in.operand[1].negate || in.operand[1].absolute || in.operand[2].negate ||
                        in.operand[2].absolute;
  const bool flush = w.flush32;
  w.flush32 = false;
  modified ? choose<float>(w, in) : choose<U32>(w, in);
  w.flush32 = flush;
}

void swap(Wave& w, const Instruction& in) {
  const auto a = static_cast<std::size_t>(in.operand[0].index);
  const auto b = static_cast<std::size_t>(in.operand[1].index);
  const Lanes32 old = w.v[a];
  const U64 old_known = w.lane_defined[a];
  w.defined = w.lane_defined[b];
  put_register(w, static_cast<int>(a), w.v[b].data());
  w.defined = old_known;
  put_register(w, static_cast<int>(b), old.data());
}

}  // namespace

void add_comparisons(Table& rows) {
  add_floats<float, float>(rows, "f32");
  add_floats<double, double>(rows, "f64");
  add_floats<Half, float>(rows, "f16");
  add_integers<std::uint32_t>(rows, "u32");
  add_integers<std::int32_t>(rows, "i32");
  add_integers<std::uint64_t>(rows, "u64");
  add_integers<std::int64_t>(rows, "i64");
  add_integers<std::uint16_t>(rows, "u16");
  add_integers<std::int16_t>(rows, "i16");
  rows["v_cmp_class_f32"] = {compare_class<float, 23, 8, false>};
  rows["v_cmp_class_f64"] = {compare_class<double, 52, 11, false>};
  rows["v_cmp_class_f16"] = {compare_class<Half, 10, 5, false>};
  rows["v_cmpx_class_f32"] = {compare_class<float, 23, 8, true>};
  rows["v_cmpx_class_f64"] = {compare_class<double, 52, 11, true>};
  rows["v_cndmask_b32"] = {choose32};
  rows["v_cndmask_b16"] = {choose<std::uint16_t>};
  rows["v_mov_b32"] = {lane_by_lane<[](U32 a) { return a; }>()};
  rows["v_mov_b16"] = {lane_by_lane<[](std::uint16_t a) { return a; }>()};
  rows["v_accvgpr_read_b32"] = rows["v_mov_b32"];
  rows["v_accvgpr_write_b32"] = rows["v_mov_b32"];
  rows["v_accvgpr_mov_b32"] = rows["v_mov_b32"];
  rows["v_swap_b32"] = {swap, 2};
}

}  // namespace amdgpu_emulator
