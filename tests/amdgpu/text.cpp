// Reads operands and modifiers as LLVM prints them.
#include "tests/amdgpu/text.h"

#include <bit>
#include <charconv>
#include <cstdlib>
#include <map>

#include "tests/amdgpu/half.h"
#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\n')) {
    text.remove_suffix(1);
  }
  return text;
}

long long number(std::string_view text) {
  return std::strtoll(std::string(text).c_str(), nullptr, 0);
}

// Numbers of "[1,0,1]", the first in the lowest bits.
std::uint32_t bit_list(std::string_view text, unsigned width, int* count = nullptr) {
  std::uint32_t bits = 0;
  unsigned place = 0;
  for (const std::string& part : split_outside(text.substr(1, text.size() - 2), ',')) {
    bits |= static_cast<std::uint32_t>(number(part)) << place;
    place += width;
  }
  if (count != nullptr) {
    *count = static_cast<int>(place / width);
  }
  return bits;
}

// "v12", "v[2:5]", "a3" and the like after the letter: the first register and how many.
bool parse_range(std::string_view text, int& first, int& count) {
  if (text.empty()) {
    return false;
  }
  if (text.front() != '[') {
    const auto end = std::from_chars(text.data(), text.data() + text.size(), first);
    count = 1;
    return end.ec == std::errc() && end.ptr == text.data() + text.size();
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    first = static_cast<int>(number(text.substr(1)));
    count = 1;
    return true;
  }
  first = static_cast<int>(number(text.substr(1, colon - 1)));
  count = static_cast<int>(number(text.substr(colon + 1))) - first + 1;
  return true;
}

bool named_scalar(std::string_view text, bool wave64, Operand& out) {
  struct Named {
    int index;
    int count;
  };
  static const std::map<std::string_view, Named> names = {
      {"vcc_lo", {kVcc, 1}},
      {"vcc_hi", {kVcc + 1, 1}},
      {"exec_lo", {kExec, 1}},
      {"exec_hi", {kExec + 1, 1}},
      {"m0", {kM0, 1}},
      {"null", {kNull, 1}},
      {"flat_scratch", {kFlatScratch, 2}},
      {"flat_scratch_lo", {kFlatScratch, 1}},
      {"flat_scratch_hi", {kFlatScratch + 1, 1}},
      {"xnack_mask", {104, 2}},
      {"vcc", {kVcc, 2}},
      {"exec", {kExec, 2}}};
  (void)wave64;
  const auto found = names.find(text);
  if (found == names.end()) {
    return false;
  }
  out.kind = Kind::Scalar;
  out.index = found->second.index;
  out.count = found->second.count;
  return true;
}

bool constant(std::string_view text, Operand& out) {
  const std::string copy(text);
  char* end = nullptr;
  if (text.find('.') != std::string_view::npos) {
    const double value = std::strtod(copy.c_str(), &end);
    out.bits16 = to_half(value);
    out.bits32 = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    out.bits64 = out.bits_f64 = std::bit_cast<std::uint64_t>(value);
  } else {
    const long long value = static_cast<long long>(std::strtoull(copy.c_str(), &end, 0));
    out.bits64 = static_cast<std::uint64_t>(value);
    out.bits32 = static_cast<std::uint32_t>(value);
    out.bits16 = static_cast<std::uint16_t>(value);
    const bool literal = text.starts_with("0x") && out.bits64 <= 0xffffffffULL;
    out.bits_f64 = literal ? out.bits64 << 32 : out.bits64;
  }
  out.kind = Kind::Constant;
  return end == copy.c_str() + copy.size() && !copy.empty();
}

bool special_source(std::string_view text, Operand& out) {
  if (text == "scc" || text == "src_scc") {
    out.kind = Kind::Scc;
  } else if (text == "vccz" || text == "src_vccz") {
    out.kind = Kind::VccZero;
  } else if (text == "execz" || text == "src_execz") {
    out.kind = Kind::ExecZero;
  } else if (text == "src_shared_base" || text == "src_private_base") {
    out.kind = Kind::Constant;
    out.bits64 = text == "src_shared_base" ? 0x0001000000000000ULL : 0x0002000000000000ULL;
    out.bits32 = static_cast<std::uint32_t>(out.bits64 >> 32);
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::vector<std::string> split_outside(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : separator;
    depth += (c == '[' || c == '(') ? 1 : 0;
    depth -= (c == ']' || c == ')') ? 1 : 0;
    if (c == separator && (depth == 0 || i == text.size())) {
      const std::string_view piece = trimmed(text.substr(begin, i - begin));
      if (!piece.empty()) {
        pieces.emplace_back(piece);
      }
      begin = i + 1;
    }
  }
  return pieces;
}

Operand parse_operand(std::string_view text, bool wave64) {
  Operand out;
  const auto strip = [&](std::string_view before, std::string_view after) {
    if (text.starts_with(before) && text.ends_with(after) && text.size() > before.size()) {
      text = text.substr(before.size(), text.size() - before.size() - after.size());
      return true;
    }
    return false;
  };
  out.sign_extend = strip("sext(", ")");
  if (strip("neg(", ")")) {
    out.negate = true;
  } else if (text.size() > 1 && text[0] == '-' && (text[1] < '0' || text[1] > '9')) {
    out.negate = true;
    text.remove_prefix(1);
  }
  out.absolute = strip("|", "|") || strip("abs(", ")");
  if (text == "off") {
    return out;
  }
  if (named_scalar(text, wave64, out) || special_source(text, out)) {
    return out;
  }
  std::string_view registers = text.substr(text.empty() ? 0 : 1);
  if (text.starts_with("v") || text.starts_with("a") || text.starts_with("s")) {
    if (text.ends_with(".h") || text.ends_with(".l")) {
      out.high_half = text.ends_with(".h");
      registers.remove_suffix(2);
    }
    if (parse_range(registers, out.index, out.count)) {
      out.kind = text[0] == 's' ? Kind::Scalar : Kind::Vector;
      out.index += text[0] == 'a' ? kAccumulators : 0;
      return out;
    }
  }
  if (text.starts_with("ttmp") && parse_range(text.substr(4), out.index, out.count)) {
    out.kind = Kind::Scalar;
    out.index += 108;
    return out;
  }
  if (!constant(text, out)) {
    out.kind = Kind::Name;
    out.name = text;
  }
  return out;
}

namespace {

bool lane_move(Instruction& in, std::string_view name, std::string_view value) {
  static const std::map<std::string_view, LaneMove> moves = {
      {"row_shl", LaneMove::RowShl},
      {"row_shr", LaneMove::RowShr},
      {"row_ror", LaneMove::RowRor},
      {"wave_shl", LaneMove::WaveShl},
      {"wave_rol", LaneMove::WaveRol},
      {"wave_shr", LaneMove::WaveShr},
      {"wave_ror", LaneMove::WaveRor},
      {"row_mirror", LaneMove::RowMirror},
      {"row_half_mirror", LaneMove::RowHalfMirror},
      {"row_newbcast", LaneMove::RowShare},
      {"row_share", LaneMove::RowShare},
      {"row_xmask", LaneMove::RowXmask}};
  if (name == "quad_perm") {
    in.move = LaneMove::QuadPerm;
    in.move_argument = bit_list(value, 2);
  } else if (name == "dpp8") {
    in.move = LaneMove::Dpp8;
    in.move_argument = bit_list(value, 3);
  } else if (name == "row_bcast") {
    in.move = number(value) == 15 ? LaneMove::Bcast15 : LaneMove::Bcast31;
  } else if (const auto found = moves.find(name); found != moves.end()) {
    in.move = found->second;
    in.move_argument = static_cast<std::uint32_t>(number(value));
  } else {
    return false;
  }
  return true;
}

Select select_of(std::string_view value) {
  if (value.starts_with("BYTE_")) {
    return static_cast<Select>(value[5] - '0');
  }
  return value == "WORD_0" ? Select::Word0 : value == "WORD_1" ? Select::Word1 : Select::Dword;
}

bool selection(Instruction& in, std::string_view name, std::string_view value) {
  if (name == "dst_sel") {
    in.result_select = select_of(value);
  } else if (name == "dst_unused") {
    in.unused = value == "UNUSED_SEXT" ? 1 : value == "UNUSED_PRESERVE" ? 2 : 0;
  } else if (name == "src0_sel" || name == "src1_sel") {
    in.source_select[name == "src0_sel" ? 0 : 1] = select_of(value);
  } else {
    return false;
  }
  in.sdwa = true;
  return true;
}

// ds_swizzle's patterns become the hardware's 16 bits.
std::int64_t swizzle(std::string_view text) {
  const auto parts = split_outside(text.substr(8, text.size() - 9), ',');
  std::uint32_t bits = 0;
  if (parts[0] == "QUAD_PERM") {
    for (unsigned i = 0; i < 4; ++i) {
      bits |= static_cast<std::uint32_t>(number(parts[i + 1])) << (2 * i);
    }
    return static_cast<std::int64_t>(bits | 0x8000U);
  }
  std::uint32_t keep = 31;
  std::uint32_t set = 0;
  std::uint32_t flip = 0;
  if (parts[0] == "SWAP") {
    flip = static_cast<std::uint32_t>(number(parts[1]));
  } else if (parts[0] == "REVERSE") {
    flip = static_cast<std::uint32_t>(number(parts[1]) - 1);
  } else if (parts[0] == "BROADCAST") {
    keep = 32U - static_cast<std::uint32_t>(number(parts[1]));
    set = static_cast<std::uint32_t>(number(parts[2]));
  } else {
    for (unsigned i = 0; i < 5; ++i) {
      const char c = parts[1][i + 1];  // after the quote; the highest bit stands first
      const std::uint32_t bit = 1U << (4 - i);
      keep = (c == '0' || c == '1') ? keep & ~bit : keep;
      set |= c == '1' ? bit : 0;
      flip |= c == 'i' ? bit : 0;
    }
  }
  return static_cast<std::int64_t>(keep | set << 5 | flip << 10);
}

bool flag(Instruction& in, std::string_view name) {
  if (name == "glc" || name == "sc0") {
    in.returns = true;
  } else if (name == "idxen") {
    in.idxen = true;
  } else if (name == "offen") {
    in.offen = true;
  } else if (name == "clamp") {
    in.clamp = true;
  } else if (name == "gds") {
    in.gds = true;
  } else if (name != "slc" && name != "dlc" && name != "sc1" && name != "nt") {
    return false;
  }
  return true;
}

bool field(Instruction& in, std::string_view name, std::string_view value) {
  if (name == "offset") {
    in.offset = value.starts_with("swizzle(") ? swizzle(value) : number(value);
  } else if (name == "offset0") {
    in.offset0 = static_cast<std::uint32_t>(number(value));
  } else if (name == "offset1") {
    in.offset1 = static_cast<std::uint32_t>(number(value));
  } else if (name == "mul") {
    in.output_scale = value == "2" ? 1 : 2;
  } else if (name == "div") {
    in.output_scale = -1;
  } else if (name == "op_sel") {
    int count = 0;
    in.op_sel = bit_list(value, 1, &count);
    in.data = count;  // the reader of operands knows if the last is the result's
  } else if (name == "op_sel_hi") {
    in.op_sel_hi = bit_list(value, 1);
  } else if (name == "neg_lo") {
    in.negate_low = bit_list(value, 1);
  } else if (name == "neg_hi") {
    in.negate_high = bit_list(value, 1);
  } else if (name == "row_mask") {
    in.row_mask = static_cast<std::uint32_t>(number(value));
  } else if (name == "bank_mask") {
    in.bank_mask = static_cast<std::uint32_t>(number(value));
  } else if (name == "bound_ctrl") {
    in.bound_control = true;
  } else if (name == "fi") {
    in.fetch_inactive = number(value) != 0;
  } else if (name == "cbsz") {
    in.cbsz = static_cast<int>(number(value));
  } else if (name == "abid") {
    in.abid = static_cast<int>(number(value));
  } else if (name == "blgp") {
    in.blgp = static_cast<int>(number(value));
  } else {
    return false;
  }
  return true;
}

}  // namespace

void parse_modifier(Instruction& in, std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view value =
      colon == std::string_view::npos ? std::string_view("1") : text.substr(colon + 1);
  if (colon == std::string_view::npos && flag(in, name)) {
    return;
  }
  if (!lane_move(in, name, value) && !selection(in, name, value) && !field(in, name, value)) {
    throw Fault("the modifier " + std::string(text) + " is unknown to the emulator");
  }
}

}  // namespace amdgpu_emulator
