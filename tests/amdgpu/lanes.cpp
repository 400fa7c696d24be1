// Exchanges between a lane and the scalars, and between lanes through v_permlane.
#include <bit>
#include <cstdint>

#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

void read_lane_of(Wave& w, const Instruction& in, int lane) {
  const Operand& source = in.operand[1];
  if (source.kind != Kind::Vector) {
    put_scalar(w, in.operand[0].index, scalar32(w, source), w.defined != 0 ? ~0U : 0);
    return;
  }
  const auto reg = static_cast<std::size_t>(source.index);
  const bool known = (w.lane_defined[reg] >> lane & 1U) != 0;
  put_scalar(w, in.operand[0].index, w.v[reg][static_cast<std::size_t>(lane)], known ? ~0U : 0);
}

void read_first_lane(Wave& w, const Instruction& in) {
  read_lane_of(w, in, w.exec == 0 ? 0 : std::countr_zero(w.exec));
}

int lane_number(const Wave& w, const Operand& operand) {
  const bool known = operand.kind != Kind::Scalar || operand.index >= kNull ||
                     w.bits_defined[static_cast<std::size_t>(operand.index)] == ~0U;
  if (!known) {
    throw Fault("the number of a lane comes from a register that was never written");
  }
  return static_cast<int>(scalar32(w, operand) & static_cast<U32>(w.lanes - 1));
}

void read_lane(Wave& w, const Instruction& in) {
  read_lane_of(w, in, lane_number(w, in.operand[2]));
}

// Writes one lane, whatever exec says.
void write_lane(Wave& w, const Instruction& in) {
  const int lane = lane_number(w, in.operand[2]);
  const auto reg = static_cast<std::size_t>(in.operand[0].index);
  w.v[reg][static_cast<std::size_t>(lane)] = scalar32(w, in.operand[1]);
  const Operand& source = in.operand[1];
  const bool known = source.kind != Kind::Scalar || source.index >= kNull ||
                     w.bits_defined[static_cast<std::size_t>(source.index)] == ~0U;
  w.lane_defined[reg] = (w.lane_defined[reg] & ~(1ULL << lane)) | static_cast<U64>(known) << lane;
}

// Counts the set bits of a mask below each lane, as v_mbcnt_lo and v_mbcnt_hi do for either half.
template <bool High>
void count_below(Wave& w, const Instruction& in) {
  Values<U32> mask;
  Values<U32> add;
  raw32(w, in, 1, mask.lane);
  raw32(w, in, 2, add.lane);
  for (int l = 0; l < w.lanes; ++l) {
    const U64 below = (1ULL << l) - 1;
    const U32 half = static_cast<U32>(High ? below >> 32 : below);
    add.lane[l] += static_cast<U32>(std::popcount(mask.lane[l] & half));
  }
  put32(w, in, 0, add.lane);
}

// v_permlane16: a lane reads one of its row (or, crossed, of the other row of 32), by 64 bits of selections.
template <bool Crossed>
void permute_row(Wave& w, const Instruction& in) {
  const U64 select = scalar32(w, in.operand[2]) | static_cast<U64>(scalar32(w, in.operand[3]))
                                                      << 32;
  const auto reg = static_cast<std::size_t>(in.operand[1].index);
  const bool fetch_inactive = (in.op_sel & 1U) != 0;
  Values<U32> out;
  U64 defined = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const int row = (l & ~15) ^ (Crossed ? 16 : 0);
    const int from = row | static_cast<int>(select >> (4 * (l & 15)) & 15U);
    const bool readable = w.active(from) || fetch_inactive;
    const bool old =
        !readable && (in.op_sel & 2U) == 0;  // without bound_ctrl the lane keeps its value
    out.lane[l] = readable ? w.v[reg][static_cast<std::size_t>(from)] : 0;
    defined |= static_cast<U64>(!readable || (w.lane_defined[reg] >> from & 1U) != 0) << l;
    w.enabled &= ~(static_cast<U64>(old) << l);
  }
  w.defined = defined;
  put32(w, in, 0, out.lane);
}

void permute_halves(Wave& w, const Instruction& in) {
  const auto reg = static_cast<std::size_t>(in.operand[1].index);
  Values<U32> out;
  U64 defined = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const int from = l ^ 32;
    out.lane[l] = w.v[reg][static_cast<std::size_t>(from)];
    defined |= (w.lane_defined[reg] >> from & 1U) << l;
  }
  w.defined = defined;
  put32(w, in, 0, out.lane);
}

}  // namespace

void add_lanes(Table& rows) {
  rows["v_readfirstlane_b32"] = {read_first_lane};
  rows["v_readlane_b32"] = {read_lane};
  rows["v_writelane_b32"] = {write_lane, 1, Effect::Generic};
  rows["v_mbcnt_lo_u32_b32"] = {count_below<false>};
  rows["v_mbcnt_hi_u32_b32"] = {count_below<true>};
  rows["v_permlane16_b32"] = {permute_row<false>};
  rows["v_permlanex16_b32"] = {permute_row<true>};
  rows["v_permlane64_b32"] = {permute_halves};
}

}  // namespace amdgpu_emulator
