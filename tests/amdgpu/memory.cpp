// Loads and stores of global, flat, scratch and buffer instructions.
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

enum class Space : std::uint8_t { Global, Flat, Scratch, Buffer };

// How a value of memory and a register correspond.
enum class Shape : std::uint8_t { Plain, Signed, LowHalf, SignedLowHalf, HighHalf, SignedHighHalf };

struct Access {
  unsigned bytes;
  Shape shape;
};

constexpr int packed(Space space, unsigned bytes, Shape shape) {
  return static_cast<int>(bytes) | static_cast<int>(shape) << 8 | static_cast<int>(space) << 16;
}
Access access_of(const Instruction& in) {
  return {static_cast<unsigned>(in.data & 255), static_cast<Shape>(in.data >> 8 & 255)};
}
Space space_of(const Instruction& in) { return static_cast<Space>(in.data >> 16); }

// The fields of a buffer's descriptor that matter here.
struct Buffer {
  U64 base = 0;
  U32 stride = 0;
  U32 records = 0;
};

Buffer buffer_of(const Wave& w, const Operand& operand) {
  const U32 second = read_scalar(w, operand.index + 1);
  return {read_scalar(w, operand.index) | static_cast<U64>(second & 0xffffU) << 32,
          second >> 16 & 0x3fffU, read_scalar(w, operand.index + 2)};
}

// Operands: `at` is that of the address, `scalar` that of the scalar base, -1 where there is none.
struct Addressing {
  int at;
  int scalar;
};

constexpr U64 kOutside = ~0ULL;  // beyond a buffer's records: reads give 0, writes are dropped

U64 buffer_address(const Wave& w, const Instruction& in, const Addressing& addressing, int lane,
                   unsigned bytes) {
  const Operand& vector = in.operand[static_cast<std::size_t>(addressing.at)];
  const Buffer buffer = buffer_of(w, in.operand[static_cast<std::size_t>(addressing.at + 1)]);
  const U32 scalar = scalar32(w, in.operand[static_cast<std::size_t>(addressing.at + 2)]);
  const auto value = [&](int r) {
    return w.v[static_cast<std::size_t>(vector.index + r)][static_cast<std::size_t>(lane)];
  };
  const U32 index = in.idxen ? value(0) : 0;
  const U32 offset = (in.offen ? value(in.idxen ? 1 : 0) : 0) + static_cast<U32>(in.offset);
  const bool outside = buffer.stride == 0 ? static_cast<U64>(offset) + bytes > buffer.records
                                          : index >= buffer.records;
  return outside ? kOutside
                 : buffer.base + scalar + static_cast<U64>(buffer.stride) * index + offset;
}

U64 address_of(Wave& w, const Instruction& in, const Addressing& addressing, int lane,
               unsigned bytes) {
  const Space space = space_of(in);
  if (space == Space::Buffer) {
    return buffer_address(w, in, addressing, lane, bytes);
  }
  const Operand& vector = in.operand[static_cast<std::size_t>(addressing.at)];
  const Operand* scalar = addressing.scalar >= 0 && addressing.scalar < in.operands
                              ? &in.operand[static_cast<std::size_t>(addressing.scalar)]
                              : nullptr;
  const bool has_scalar =
      scalar != nullptr && scalar->kind == Kind::Scalar && scalar->index != kNull;
  const auto reg = static_cast<std::size_t>(vector.index);
  const auto l = static_cast<std::size_t>(lane);
  if (space == Space::Scratch) {
    const U32 base = vector.kind == Kind::Vector ? w.v[reg][l] : 0;
    return static_cast<U32>(base + (has_scalar ? scalar32(w, *scalar) : 0) +
                            static_cast<U32>(in.offset));
  }
  if (has_scalar) {
    return scalar64(w, *scalar) + w.v[reg][l] + static_cast<U64>(in.offset);
  }
  return (w.v[reg][l] | static_cast<U64>(w.v[reg + 1][l]) << 32) + static_cast<U64>(in.offset);
}

std::uint8_t* bytes_at(Wave& w, const Instruction& in, U64 address, unsigned bytes, int lane,
                       Use use, const void* written, bool* defined) {
  if (space_of(in) == Space::Scratch) {
    return scratch_at(w, address, bytes, lane);
  }
  return flat_at(w, address, bytes, lane, use, space_of(in) == Space::Flat, written, defined);
}

U32 widened(U32 value, unsigned bytes) {
  return bytes == 1 ? static_cast<U32>(static_cast<std::int8_t>(value))
                    : static_cast<U32>(static_cast<std::int16_t>(value));
}

U32 merged(U32 old, U32 value, const Access& access) {
  switch (access.shape) {
    case Shape::Plain:
      return value;
    case Shape::Signed:
      return widened(value, access.bytes);
    case Shape::LowHalf:
      return (old & 0xffff0000U) | value;
    case Shape::SignedLowHalf:
      return (old & 0xffff0000U) | (widened(value, access.bytes) & 0xffffU);
    case Shape::HighHalf:
      return (old & 0xffffU) | value << 16;
    case Shape::SignedHighHalf:
      return (old & 0xffffU) | widened(value, access.bytes) << 16;
  }
  return value;
}

void load(Wave& w, const Instruction& in) {
  const Access access = access_of(in);
  const int to = in.operand[0].index;
  check_defined(w, "an address");
  U64 defined = w.all_lanes();
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const auto l = static_cast<std::size_t>(lane);
    const U64 address = address_of(w, in, {1, 2}, lane, access.bytes);
    U32 words[4] = {};
    bool known = true;
    if (address != kOutside) {
      std::memcpy(words, bytes_at(w, in, address, access.bytes, lane, Use::Read, nullptr, &known),
                  access.bytes);
    }
    defined &= known ? ~0ULL : ~(1ULL << lane);
    if (access.bytes < 4) {
      U32& reg = w.v[static_cast<std::size_t>(to)][l];
      reg = merged(reg, words[0], access);
      continue;
    }
    for (unsigned word = 0; word < access.bytes / 4; ++word) {
      w.v[static_cast<std::size_t>(to) + word][l] = words[word];
    }
  }
  const int registers = access.bytes < 4 ? 1 : static_cast<int>(access.bytes / 4);
  for (int r = to; r < to + registers; ++r) {
    U64& known = w.lane_defined[static_cast<std::size_t>(r)];
    known = (known & ~w.exec) | (defined & w.exec);
  }
  issue(w, Counter::Vector);
  await_registers(w, to, registers, Counter::Vector);
}

void store(Wave& w, const Instruction& in) {
  const Access access = access_of(in);
  const bool buffer = space_of(in) == Space::Buffer;
  const Operand& data = in.operand[buffer ? 0 : 1];
  const Addressing addressing = buffer ? Addressing{1, 3} : Addressing{0, 2};
  if (space_of(in) != Space::Scratch) {  // a register may be spilled before it has a value
    check_defined(w, "an address or a value that is stored");
  }
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const U64 address = address_of(w, in, addressing, lane, access.bytes);
    if (address == kOutside) {
      continue;
    }
    U32 words[4] = {};
    for (unsigned word = 0; word < (access.bytes + 3) / 4; ++word) {
      words[word] =
          w.v[static_cast<std::size_t>(data.index) + word][static_cast<std::size_t>(lane)];
    }
    words[0] = access.shape == Shape::HighHalf ? words[0] >> 16 : words[0];
    std::memcpy(bytes_at(w, in, address, access.bytes, lane, Use::Write, words, nullptr), words,
                access.bytes);
  }
  issue(w, w.gfx9 ? Counter::Vector : Counter::Store);
}

struct Name {
  const char* gfx9;
  const char* gfx11;
  unsigned bytes;
  Shape shape;
};

constexpr Name kLoads[] = {{"ubyte", "u8", 1, Shape::Plain},
                           {"sbyte", "i8", 1, Shape::Signed},
                           {"ushort", "u16", 2, Shape::Plain},
                           {"sshort", "i16", 2, Shape::Signed},
                           {"dword", "b32", 4, Shape::Plain},
                           {"dwordx2", "b64", 8, Shape::Plain},
                           {"dwordx3", "b96", 12, Shape::Plain},
                           {"dwordx4", "b128", 16, Shape::Plain},
                           {"ubyte_d16", "d16_u8", 1, Shape::LowHalf},
                           {"ubyte_d16_hi", "d16_hi_u8", 1, Shape::HighHalf},
                           {"sbyte_d16", "d16_i8", 1, Shape::SignedLowHalf},
                           {"sbyte_d16_hi", "d16_hi_i8", 1, Shape::SignedHighHalf},
                           {"short_d16", "d16_b16", 2, Shape::LowHalf},
                           {"short_d16_hi", "d16_hi_b16", 2, Shape::HighHalf}};
constexpr Name kStores[] = {{"byte", "b8", 1, Shape::Plain},
                            {"short", "b16", 2, Shape::Plain},
                            {"dword", "b32", 4, Shape::Plain},
                            {"dwordx2", "b64", 8, Shape::Plain},
                            {"dwordx3", "b96", 12, Shape::Plain},
                            {"dwordx4", "b128", 16, Shape::Plain},
                            {"byte_d16_hi", "d16_hi_b8", 1, Shape::HighHalf},
                            {"short_d16_hi", "d16_hi_b16", 2, Shape::HighHalf}};

}  // namespace

void add_memory(Table& rows) {
  const std::pair<const char*, Space> spaces[] = {{"global_", Space::Global},
                                                  {"flat_", Space::Flat},
                                                  {"scratch_", Space::Scratch},
                                                  {"buffer_", Space::Buffer}};
  for (const auto& [prefix, space] : spaces) {
    for (const Name& name : kLoads) {
      const Row row = {load, 1, Effect::Generic, packed(space, name.bytes, name.shape)};
      rows[prefix + std::string("load_") + name.gfx9] = row;
      rows[prefix + std::string("load_") + name.gfx11] = row;
    }
    for (const Name& name : kStores) {
      const Row row = {store, 0, Effect::NoResult, packed(space, name.bytes, name.shape)};
      rows[prefix + std::string("store_") + name.gfx9] = row;
      rows[prefix + std::string("store_") + name.gfx11] = row;
    }
  }
}

// Scalar loads: whole dwords from a 64-bit base.
void add_scalar_memory(Table& rows) {
  const auto scalar_load = [](Wave& w, const Instruction& in) {
    if (w.defined == 0) {
      throw Fault("an address comes from a register that was never written");
    }
    const Operand& base = in.operand[1];
    const Operand& offset = in.operand[2];
    U64 address = scalar64(w, base) + static_cast<U64>(in.offset);
    address += offset.kind == Kind::Constant ? offset.bits64 : scalar32(w, offset);
    if (address % 4 != 0) {
      throw Fault("a misaligned scalar load at address " + std::to_string(address));
    }
    const unsigned words = static_cast<unsigned>(in.data);
    const std::uint8_t* from = flat_at(w, address, 4 * words, -1, Use::Read, false);
    issue(w, Counter::Scalar);
    for (unsigned i = 0; i < words; ++i) {
      U32 value = 0;
      std::memcpy(&value, from + 4 * i, 4);
      put_scalar(w, in.operand[0].index + static_cast<int>(i), value, ~0U);
    }
    await_registers(w, kScalars + in.operand[0].index, static_cast<int>(words), Counter::Scalar);
  };
  for (const int words : {1, 2, 3, 4, 8, 16}) {
    const std::string old = words == 1 ? "dword" : "dwordx" + std::to_string(words);
    rows["s_load_" + old] = {scalar_load, 1, Effect::Generic, words};
    rows["s_load_b" + std::to_string(32 * words)] = {scalar_load, 1, Effect::Generic, words};
    const auto buffer_load = [](Wave& w, const Instruction& in) {
      const Buffer buffer = buffer_of(w, in.operand[1]);
      const Operand& by = in.operand[2];
      const U64 offset =
          (by.kind == Kind::Constant ? by.bits64 : scalar32(w, by)) + static_cast<U64>(in.offset);
      issue(w, Counter::Scalar);
      for (unsigned i = 0; i < static_cast<unsigned>(in.data); ++i) {
        U32 value = 0;
        if (offset + 4 * i + 4 <= buffer.records) {
          std::memcpy(&value, flat_at(w, buffer.base + offset + 4 * i, 4, -1, Use::Read, false), 4);
        }
        put_scalar(w, in.operand[0].index + static_cast<int>(i), value, ~0U);
      }
      await_registers(w, kScalars + in.operand[0].index, in.data, Counter::Scalar);
    };
    rows["s_buffer_load_" + old] = {buffer_load, 1, Effect::Generic, words};
    rows["s_buffer_load_b" + std::to_string(32 * words)] = {buffer_load, 1, Effect::Generic, words};
  }
}

}  // namespace amdgpu_emulator
