// Loads and stores of LDS, and exchanges of lanes that go through its hardware.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/amdgpu/access.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

enum class Shape : std::uint8_t { Plain, Signed, LowHalf, SignedLowHalf, HighHalf, SignedHighHalf };

unsigned bytes_of(const Instruction& in) { return static_cast<unsigned>(in.data & 255); }
Shape shape_of(const Instruction& in) { return static_cast<Shape>(in.data >> 8 & 255); }
// ds_read2 and ds_write2 have offsets in units of their size, with st64 or stride64 of 64 such.
unsigned unit_of(const Instruction& in) {
  return bytes_of(in) * (in.name.find("64_b") != std::string::npos ? 64U : 1U);
}

std::size_t reg(const Operand& operand, unsigned word = 0) {
  return static_cast<std::size_t>(operand.index) + word;
}

U32 merged(U32 old, U32 value, unsigned bytes, Shape shape) {
  const U32 wide = bytes == 1 ? static_cast<U32>(static_cast<std::int8_t>(value))
                              : static_cast<U32>(static_cast<std::int16_t>(value));
  switch (shape) {
    case Shape::Plain:
      return value;
    case Shape::Signed:
      return wide;
    case Shape::LowHalf:
      return (old & 0xffff0000U) | value;
    case Shape::SignedLowHalf:
      return (old & 0xffff0000U) | (wide & 0xffffU);
    case Shape::HighHalf:
      return (old & 0xffffU) | value << 16;
    case Shape::SignedHighHalf:
      return (old & 0xffffU) | wide << 16;
  }
  return value;
}

// Reads `bytes` at `address` into registers from `to` on, for one lane.
void read_words(Wave& w, const Instruction& in, U64 address, unsigned to, int lane) {
  const unsigned bytes = bytes_of(in);
  const auto l = static_cast<std::size_t>(lane);
  U32 words[4] = {};
  bool known = true;
  std::memcpy(words, local_at(w, address, bytes, lane, Use::Read, nullptr, &known), bytes);
  const unsigned registers = bytes < 4 ? 1 : bytes / 4;
  for (unsigned i = 0; i < registers; ++i) {
    U32& value = w.v[to + i][l];
    value = bytes < 4 ? merged(value, words[0], bytes, shape_of(in)) : words[i];
    U64& defined = w.lane_defined[to + i];
    defined = (defined & ~(1ULL << lane)) | static_cast<U64>(known) << lane;
  }
}

void finish_load(Wave& w, const Operand& to) {
  issue(w, Counter::Local);
  await_registers(w, to.index, to.count, Counter::Local);
}

void read(Wave& w, const Instruction& in) {
  check_defined(w, "an LDS address");
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const U64 base = w.v[reg(in.operand[1])][static_cast<std::size_t>(lane)];
    read_words(w, in, base + static_cast<U64>(in.offset), static_cast<unsigned>(reg(in.operand[0])),
               lane);
  }
  finish_load(w, in.operand[0]);
}

void read_two(Wave& w, const Instruction& in) {
  check_defined(w, "an LDS address");
  const unsigned half = bytes_of(in) / 4;
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const U64 base = w.v[reg(in.operand[1])][static_cast<std::size_t>(lane)];
    const auto to = static_cast<unsigned>(reg(in.operand[0]));
    read_words(w, in, base + U64(in.offset0) * unit_of(in), to, lane);
    read_words(w, in, base + U64(in.offset1) * unit_of(in), to + half, lane);
  }
  finish_load(w, in.operand[0]);
}

void write_words(Wave& w, const Instruction& in, U64 address, const Operand& from, int lane) {
  const unsigned bytes = bytes_of(in);
  U32 words[4] = {};
  for (unsigned i = 0; i < (bytes + 3) / 4; ++i) {
    words[i] = w.v[reg(from, i)][static_cast<std::size_t>(lane)];
  }
  words[0] = shape_of(in) == Shape::HighHalf ? words[0] >> 16 : words[0];
  std::memcpy(local_at(w, address, bytes, lane, Use::Write, words), words, bytes);
}

void write(Wave& w, const Instruction& in) {
  check_defined(w, "an LDS address or a value that is stored");
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const U64 base = w.v[reg(in.operand[0])][static_cast<std::size_t>(lane)];
    write_words(w, in, base + static_cast<U64>(in.offset), in.operand[1], lane);
  }
  w.local_writes = issue(w, Counter::Local);
}

void write_two(Wave& w, const Instruction& in) {
  check_defined(w, "an LDS address or a value that is stored");
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const U64 base = w.v[reg(in.operand[0])][static_cast<std::size_t>(lane)];
    write_words(w, in, base + U64(in.offset0) * unit_of(in), in.operand[1], lane);
    write_words(w, in, base + U64(in.offset1) * unit_of(in), in.operand[2], lane);
  }
  w.local_writes = issue(w, Counter::Local);
}

// Gathers lanes' values of a register; a lane that is off gives 0 (as the hardware does for bpermute).
void gather(Wave& w, const Instruction& in, const Operand& source, const int* from) {
  Values<U32> out;
  U64 defined = 0;
  const std::size_t source_reg = reg(source);
  for (int l = 0; l < w.lanes; ++l) {
    const bool readable = from[l] >= 0 && w.active(from[l]);
    out.lane[l] = readable ? w.v[source_reg][static_cast<std::size_t>(from[l])] : 0;
    defined |= static_cast<U64>(!readable || (w.lane_defined[source_reg] >> from[l] & 1U) != 0)
               << l;
  }
  w.defined = defined;
  put_register(w, in.operand[0].index, out.lane);
  finish_load(w, in.operand[0]);
}

void check_lane_numbers(Wave& w, const Operand& operand) {
  w.defined = w.lane_defined[reg(operand)];
  check_defined(w, "the number of a lane");
}

void backward_permute(Wave& w, const Instruction& in) {
  check_lane_numbers(w, in.operand[1]);
  int from[kMaxLanes];
  for (int l = 0; l < w.lanes; ++l) {
    const U32 bytes =
        w.v[reg(in.operand[1])][static_cast<std::size_t>(l)] + static_cast<U32>(in.offset);
    from[l] = static_cast<int>(bytes / 4 % static_cast<U32>(w.lanes));
  }
  gather(w, in, in.operand[2], from);
}

void forward_permute(Wave& w, const Instruction& in) {
  check_lane_numbers(w, in.operand[1]);
  int from[kMaxLanes];
  std::fill_n(from, kMaxLanes, -1);
  for (int l = 0; l < w.lanes; ++l) {
    const U32 bytes =
        w.v[reg(in.operand[1])][static_cast<std::size_t>(l)] + static_cast<U32>(in.offset);
    if (w.active(l)) {
      from[bytes / 4 % static_cast<U32>(w.lanes)] = l;
    }
  }
  gather(w, in, in.operand[2], from);
}

void swizzle(Wave& w, const Instruction& in) {
  const auto pattern = static_cast<U32>(in.offset) & 0xffffU;
  int from[kMaxLanes];
  for (int l = 0; l < w.lanes; ++l) {
    if ((pattern & 0x8000U) != 0) {
      from[l] = (l & ~3) | static_cast<int>(pattern >> (2 * (l & 3)) & 3U);
    } else {
      const U32 in_half =
          (((static_cast<U32>(l) & pattern & 31U) | (pattern >> 5 & 31U)) ^ (pattern >> 10 & 31U)) &
          31U;
      from[l] = (l & 32) | static_cast<int>(in_half);
    }
  }
  gather(w, in, in.operand[1], from);
}

void nothing_local(Wave&, const Instruction&) {}

struct Name {
  const char* name;
  unsigned bytes;
  Shape shape;
};

constexpr Name kReads[] = {{"u8", 1, Shape::Plain},
                           {"i8", 1, Shape::Signed},
                           {"u16", 2, Shape::Plain},
                           {"i16", 2, Shape::Signed},
                           {"b32", 4, Shape::Plain},
                           {"b64", 8, Shape::Plain},
                           {"b96", 12, Shape::Plain},
                           {"b128", 16, Shape::Plain},
                           {"u8_d16", 1, Shape::LowHalf},
                           {"u8_d16_hi", 1, Shape::HighHalf},
                           {"i8_d16", 1, Shape::SignedLowHalf},
                           {"i8_d16_hi", 1, Shape::SignedHighHalf},
                           {"u16_d16", 2, Shape::LowHalf},
                           {"u16_d16_hi", 2, Shape::HighHalf}};
constexpr Name kWrites[] = {{"b8", 1, Shape::Plain},           {"b16", 2, Shape::Plain},
                            {"b32", 4, Shape::Plain},          {"b64", 8, Shape::Plain},
                            {"b96", 12, Shape::Plain},         {"b128", 16, Shape::Plain},
                            {"b8_d16_hi", 1, Shape::HighHalf}, {"b16_d16_hi", 2, Shape::HighHalf}};

}  // namespace

void add_local(Table& rows) {
  const auto row = [](Handler run, int results, unsigned bytes, Shape shape) {
    return Row{run, results, results == 0 ? Effect::NoResult : Effect::Generic,
               static_cast<int>(bytes) | static_cast<int>(shape) << 8};
  };
  for (const char* verb : {"ds_read_", "ds_load_"}) {
    for (const Name& name : kReads) {
      rows[std::string(verb) + name.name] = row(read, 1, name.bytes, name.shape);
    }
  }
  for (const char* verb : {"ds_write_", "ds_store_"}) {
    for (const Name& name : kWrites) {
      rows[std::string(verb) + name.name] = row(write, 0, name.bytes, name.shape);
    }
  }
  for (const char* kind : {"2_b", "2st64_b", "_2addr_b", "_2addr_stride64_b"}) {
    for (const unsigned bytes : {4U, 8U}) {
      const std::string suffix = kind + std::to_string(8 * bytes);
      rows["ds_read" + suffix] = rows["ds_load" + suffix] = row(read_two, 1, bytes, Shape::Plain);
      rows["ds_write" + suffix] = rows["ds_store" + suffix] =
          row(write_two, 0, bytes, Shape::Plain);
    }
  }
  rows["ds_bpermute_b32"] = {backward_permute};
  rows["ds_permute_b32"] = {forward_permute};
  rows["ds_swizzle_b32"] = {swizzle};
  rows["ds_nop"] = {nothing_local, 0, Effect::NoResult};
}

}  // namespace amdgpu_emulator
