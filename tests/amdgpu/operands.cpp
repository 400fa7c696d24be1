// Reads and writes of registers, for all lanes of a wave.
#include "tests/amdgpu/operands.h"

#include <algorithm>
#include <cstring>

namespace amdgpu_emulator {
namespace {

constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::uint32_t selected(std::uint32_t value, Select select, bool sign_extend) {
  const auto number = static_cast<unsigned>(select);
  if (select == Select::Dword) {
    return value;
  }
  if (number < 4) {
    const std::uint32_t byte = (value >> (8 * number)) & 0xffU;
    return sign_extend ? static_cast<std::uint32_t>(static_cast<std::int8_t>(byte)) : byte;
  }
  const std::uint32_t half = (value >> (16 * (number - 4))) & 0xffffU;
  return sign_extend ? static_cast<std::uint32_t>(static_cast<std::int16_t>(half)) : half;
}

// Lane that lane `l` reads, or -1 where there is none.
int moved_from(const Wave& w, const Instruction& in, int l) {
  const auto argument = static_cast<int>(in.move_argument);
  const int row = l & ~15;
  const int in_row = l & 15;
  const auto inside = [](int lane) { return lane >= 0 && lane < 16; };
  switch (in.move) {
    case LaneMove::QuadPerm:
      return (l & ~3) | ((argument >> (2 * (l & 3))) & 3);
    case LaneMove::RowShl:
      return inside(in_row + argument) ? l + argument : -1;
    case LaneMove::RowShr:
      return inside(in_row - argument) ? l - argument : -1;
    case LaneMove::RowRor:
      return row | ((in_row - argument) & 15);
    case LaneMove::WaveShl:
      return l + 1 < w.lanes ? l + 1 : -1;
    case LaneMove::WaveRol:
      return (l + 1) % w.lanes;
    case LaneMove::WaveShr:
      return l - 1;
    case LaneMove::WaveRor:
      return (l + w.lanes - 1) % w.lanes;
    case LaneMove::RowMirror:
      return row | (15 - in_row);
    case LaneMove::RowHalfMirror:
      return (l & ~7) | (7 - (l & 7));
    case LaneMove::Bcast15:
      return row == 0 ? -1 : row - 1;
    case LaneMove::Bcast31:
      return l < 32 ? -1 : 31;
    case LaneMove::RowShare:
      return row | argument;
    case LaneMove::RowXmask:
      return row | (in_row ^ argument);
    case LaneMove::Dpp8:
      return (l & ~7) | ((argument >> (3 * (l & 7))) & 7);
    case LaneMove::None:
      break;
  }
  return l;
}

void exchange(Wave& w, const Instruction& in, const std::uint32_t* from, std::uint32_t* out) {
  for (int l = 0; l < w.lanes; ++l) {
    const int source = moved_from(w, in, l);
    const bool readable = source >= 0 && (w.active(source) || in.fetch_inactive);
    out[l] = readable ? from[source] : 0;
  }
}

void vector_register(Wave& w, const Instruction& in, int k, int reg, std::uint32_t* out) {
  const std::uint32_t* lanes = w.v[at(reg)].data();
  if (in.move != LaneMove::None && k == in.results) {
    exchange(w, in, lanes, out);
  } else {
    std::copy_n(lanes, w.lanes, out);
  }
}

}  // namespace

// Lanes whose source exists are written; the others only where bound_ctrl gives them a zero.
void lane_move_mask(Wave& w, const Instruction& in) {
  const Operand& source = in.operand[at(in.results)];
  const std::uint64_t known =
      source.kind == Kind::Vector ? w.lane_defined[at(source.index)] : ~0ULL;
  std::uint64_t enabled = 0;
  std::uint64_t defined = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const int from = moved_from(w, in, l);
    const bool readable = from >= 0 && (w.active(from) || in.fetch_inactive);
    const bool masked = in.move != LaneMove::Dpp8 && (((in.row_mask >> (l / 16)) & 1U) == 0 ||
                                                      ((in.bank_mask >> ((l & 15) / 4)) & 1U) == 0);
    if (!masked && (readable || in.bound_control || in.move == LaneMove::Dpp8)) {
      enabled |= 1ULL << l;
    }
    if (!readable || ((known >> from) & 1U) != 0) {
      defined |= 1ULL << l;
    }
  }
  w.enabled &= enabled;
  // The source's own lanes were asked for in vain: only those that were moved count.
  w.defined = defined;
  for (int k = in.results + 1; k < in.operands; ++k) {
    const Operand& other = in.operand[at(k)];
    for (int r = 0; other.kind == Kind::Vector && r < other.count; ++r) {
      w.defined &= w.lane_defined[at(other.index + r)];
    }
  }
}

float flushed(float value) {
  return std::fabs(value) < 0x1p-126F ? std::copysign(0.0F, value) : value;
}
double flushed(double value) {
  return std::fabs(value) < 0x1p-1022 ? std::copysign(0.0, value) : value;
}
std::uint16_t flushed_half(std::uint16_t bits) {
  return static_cast<std::uint16_t>((bits & 0x7c00U) == 0 ? bits & 0x8000U : bits);
}

std::uint32_t read_scalar(const Wave& w, int index) {
  if (index >= kExec) {
    return static_cast<std::uint32_t>(index == kExec ? w.exec : w.exec >> 32);
  }
  return w.s[at(index)];
}

std::uint32_t scalar32(const Wave& w, const Operand& operand) {
  switch (operand.kind) {
    case Kind::Scalar:
      return read_scalar(w, operand.index);
    case Kind::Scc:
      return w.scc ? 1 : 0;
    case Kind::VccZero:
      return (w.s[kVcc] == 0 && (w.lanes == 32 || w.s[kVcc + 1] == 0)) ? 1 : 0;
    case Kind::ExecZero:
      return w.exec == 0 ? 1 : 0;
    case Kind::Vector:
      throw Fault("a vector register where a scalar is wanted");
    default:
      return operand.bits32;
  }
}

std::uint64_t scalar64(const Wave& w, const Operand& operand) {
  if (operand.kind == Kind::Scalar) {
    const std::uint64_t low = read_scalar(w, operand.index);
    return operand.index == kNull
               ? 0
               : low | static_cast<std::uint64_t>(read_scalar(w, operand.index + 1)) << 32;
  }
  return operand.kind == Kind::Constant ? operand.bits64 : scalar32(w, operand);
}

void put_scalar(Wave& w, int index, std::uint32_t value, std::uint32_t defined) {
  if (index == kNull) {
    return;
  }
  if (index >= kExec) {
    if (defined != ~0U) {
      throw Fault("exec is set from a register that was never written");
    }
    const std::uint64_t keep =
        index == kExec ? w.exec & 0xffffffff00000000ULL : w.exec & 0xffffffffULL;
    w.exec = keep | static_cast<std::uint64_t>(value) << (index == kExec ? 0 : 32);
    return;
  }
  w.s[at(index)] = value;
  w.bits_defined[at(index)] = defined;
}

void raw32(Wave& w, const Instruction& in, int k, std::uint32_t* out) {
  const Operand& operand = in.operand[at(k)];
  if (operand.kind == Kind::Vector) {
    vector_register(w, in, k, operand.index, out);
  } else {
    std::fill_n(out, w.lanes, scalar32(w, operand));
  }
  if (in.sdwa && k >= in.results && k < in.results + 2) {
    const Select select = in.source_select[at(k - in.results)];
    for (int l = 0; l < w.lanes && (select != Select::Dword); ++l) {
      out[l] = selected(out[l], select, operand.sign_extend);
    }
  }
}

void raw64(Wave& w, const Instruction& in, int k, bool is_float, std::uint64_t* out) {
  const Operand& operand = in.operand[at(k)];
  if (operand.kind != Kind::Vector) {
    const bool literal = operand.kind == Kind::Constant && is_float;
    std::fill_n(out, w.lanes, literal ? operand.bits_f64 : scalar64(w, operand));
    return;
  }
  Values<std::uint32_t> low;
  Values<std::uint32_t> high;
  vector_register(w, in, k, operand.index, low.lane);
  vector_register(w, in, k, operand.index + 1, high.lane);
  for (int l = 0; l < w.lanes; ++l) {
    out[l] = low.lane[l] | static_cast<std::uint64_t>(high.lane[l]) << 32;
  }
}

void raw16(Wave& w, const Instruction& in, int k, std::uint16_t* out) {
  const Operand& operand = in.operand[at(k)];
  if (operand.kind == Kind::Constant) {
    std::fill_n(out, w.lanes, operand.bits16);
    return;
  }
  Values<std::uint32_t> bits;
  raw32(w, in, k, bits.lane);
  const int source = k >= in.results ? k - in.results : 31;
  const bool high = operand.high_half || ((in.op_sel >> source) & 1U) != 0;
  for (int l = 0; l < w.lanes; ++l) {
    out[l] = static_cast<std::uint16_t>(bits.lane[l] >> (high ? 16 : 0));
  }
}

void put_register(Wave& w, int reg, const std::uint32_t* values) {
  std::uint32_t* to = w.v[at(reg)].data();
  const std::uint64_t enabled = w.enabled;
  if (enabled == w.all_lanes()) {
    std::copy_n(values, w.lanes, to);
  } else {
    for (int l = 0; l < w.lanes; ++l) {
      to[l] = ((enabled >> l) & 1U) != 0 ? values[l] : to[l];
    }
  }
  std::uint64_t& known = w.lane_defined[at(reg)];
  known = (known & ~enabled) | (w.defined & enabled);
}

void put32(Wave& w, const Instruction& in, int k, const std::uint32_t* values) {
  const Operand& operand = in.operand[at(k)];
  if (operand.kind == Kind::None) {
    return;
  }
  if (!in.sdwa || in.result_select == Select::Dword) {
    put_register(w, operand.index, values);
    return;
  }
  const auto number = static_cast<unsigned>(in.result_select);
  const unsigned shift = number < 4 ? 8 * number : 16 * (number - 4);
  const std::uint32_t field = (number < 4 ? 0xffU : 0xffffU) << shift;
  Values<std::uint32_t> merged;
  for (int l = 0; l < w.lanes; ++l) {
    std::uint32_t rest = in.unused == 2 ? w.v[at(operand.index)][at(l)] & ~field : 0;
    const std::uint32_t placed = (values[l] << shift) & field;
    const std::uint32_t top_bit = field & (field ^ (field >> 1));
    if (in.unused == 1 && (placed & top_bit) != 0) {
      rest = ~(field | ((1U << shift) - 1));
    }
    merged.lane[l] = placed | rest;
  }
  put_register(w, operand.index, merged.lane);
}

void put64(Wave& w, const Instruction& in, int k, const std::uint64_t* values) {
  Values<std::uint32_t> low;
  Values<std::uint32_t> high;
  for (int l = 0; l < w.lanes; ++l) {
    low.lane[l] = static_cast<std::uint32_t>(values[l]);
    high.lane[l] = static_cast<std::uint32_t>(values[l] >> 32);
  }
  put_register(w, in.operand[at(k)].index, low.lane);
  put_register(w, in.operand[at(k)].index + 1, high.lane);
}

namespace {

// Since gfx10 an instruction of 16 bits keeps the other half of its register; gfx9 clears it, with these exceptions.
bool keeps_other_half(const Wave& w, const Instruction& in) {
  return !w.gfx9 || in.name == "v_fma_f16" || in.name == "v_mad_u16" || in.name == "v_mad_i16" ||
         in.name == "v_div_fixup_f16" || in.name == "v_mad_f16" || (in.op_sel & 8U) != 0;
}

}  // namespace

void put16(Wave& w, const Instruction& in, int k, const std::uint16_t* values) {
  const Operand& operand = in.operand[at(k)];
  Values<std::uint32_t> merged;
  if (in.sdwa) {
    std::copy_n(values, w.lanes, merged.lane);
    put32(w, in, k, merged.lane);
    return;
  }
  const bool high = operand.high_half || (in.op_sel & 8U) != 0;
  const bool keep = keeps_other_half(w, in);
  const std::uint32_t* old = w.v[at(operand.index)].data();
  for (int l = 0; l < w.lanes; ++l) {
    if (high) {
      merged.lane[l] = (old[l] & 0xffffU) | static_cast<std::uint32_t>(values[l]) << 16;
    } else {
      merged.lane[l] = (keep ? old[l] & 0xffff0000U : 0) | values[l];
    }
  }
  put_register(w, operand.index, merged.lane);
}

std::uint64_t known_word(const Wave& w, const Operand& operand, int word) {
  if (operand.kind == Kind::Vector) {
    return w.lane_defined[at(operand.index + std::min(word, operand.count - 1))];
  }
  if (operand.kind == Kind::Scalar && operand.index < kNull) {
    return w.bits_defined[at(operand.index + std::min(word, operand.count - 1))] == ~0U ? ~0ULL : 0;
  }
  return ~0ULL;
}

void mark_register(Wave& w, int reg, std::uint64_t known) {
  std::uint64_t& lanes = w.lane_defined[at(reg)];
  lanes = (lanes & ~w.enabled) | (known & w.enabled);
}

void put_mask(Wave& w, const Operand& operand, std::uint64_t mask) {
  const std::uint64_t value = mask & w.enabled;
  const std::uint64_t known = w.defined | ~w.enabled;
  put_scalar(w, operand.index, static_cast<std::uint32_t>(value),
             static_cast<std::uint32_t>(known));
  if (w.lanes == 64 && operand.index != kNull) {
    put_scalar(w, operand.index + 1, static_cast<std::uint32_t>(value >> 32),
               static_cast<std::uint32_t>(known >> 32));
  }
}

std::uint64_t get_mask(const Wave& w, const Operand& operand) {
  return w.lanes == 64 ? scalar64(w, operand) : scalar32(w, operand);
}

}  // namespace amdgpu_emulator
