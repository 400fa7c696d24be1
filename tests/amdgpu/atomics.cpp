// Atomic operations on global memory and on LDS. Workgroups run on several threads, so those on global memory are atomic
// for the host, too.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/amdgpu/access.h"
#include "tests/amdgpu/float_ops.h"
#include "tests/amdgpu/half.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;
using I64 = std::int64_t;

enum class Operation : std::uint8_t {
  Add,
  Subtract,
  ReverseSubtract,
  MinSigned,
  MinUnsigned,
  MaxSigned,
  MaxUnsigned,
  And,
  Or,
  Xor,
  Increment,
  Decrement,
  Swap,
  CompareSwap,
  AddFloat,
  MinFloat,
  MaxFloat,
  AddHalves,
  AddBf16
};

enum class Space : std::uint8_t { Global, Flat, Local };

constexpr int packed(Operation operation, unsigned bytes, Space space) {
  return static_cast<int>(operation) | static_cast<int>(bytes) << 8 | static_cast<int>(space) << 16;
}

U64 halves(U64 a, U64 b, bool bf16) {
  U64 out = 0;
  for (unsigned shift : {0U, 16U}) {
    const auto x = static_cast<std::uint16_t>(a >> shift);
    const auto y = static_cast<std::uint16_t>(b >> shift);
    const std::uint16_t sum =
        bf16 ? to_bf16(static_cast<double>(from_bf16(x)) + static_cast<double>(from_bf16(y)))
             : to_half(static_cast<double>(from_half(x)) + static_cast<double>(from_half(y)));
    out |= static_cast<U64>(sum) << shift;
  }
  return out;
}

template <class T>
U64 of_floats(Operation operation, T a, T b) {
  const T value = operation == Operation::AddFloat   ? a + b
                  : operation == Operation::MinFloat ? least(a, b)
                                                     : greatest(a, b);
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<U32>(value);
  } else {
    return std::bit_cast<U64>(value);
  }
}

U64 updated(Operation operation, U64 old, U64 value, U64 compared, unsigned bytes) {
  const bool wide = bytes == 8;
  const I64 signed_old = wide ? static_cast<I64>(old) : static_cast<I32>(old);
  const I64 signed_value = wide ? static_cast<I64>(value) : static_cast<I32>(value);
  switch (operation) {
    case Operation::Add:
      return old + value;
    case Operation::Subtract:
      return old - value;
    case Operation::ReverseSubtract:
      return value - old;
    case Operation::MinSigned:
      return signed_value < signed_old ? value : old;
    case Operation::MaxSigned:
      return signed_value > signed_old ? value : old;
    case Operation::MinUnsigned:
      return std::min(old, value);
    case Operation::MaxUnsigned:
      return std::max(old, value);
    case Operation::And:
      return old & value;
    case Operation::Or:
      return old | value;
    case Operation::Xor:
      return old ^ value;
    case Operation::Increment:
      return old >= value ? 0 : old + 1;
    case Operation::Decrement:
      return old == 0 || old > value ? value : old - 1;
    case Operation::Swap:
      return value;
    case Operation::CompareSwap:
      return old == compared ? value : old;
    case Operation::AddHalves:
    case Operation::AddBf16:
      return halves(old, value, operation == Operation::AddBf16);
    case Operation::AddFloat:
    case Operation::MinFloat:
    case Operation::MaxFloat:
      return wide ? of_floats(operation, std::bit_cast<double>(old), std::bit_cast<double>(value))
                  : of_floats(operation, std::bit_cast<float>(static_cast<U32>(old)),
                              std::bit_cast<float>(static_cast<U32>(value)));
  }
  return old;
}

template <class T>
U64 exchange(std::uint8_t* at, Operation operation, U64 value, U64 compared) {
  std::atomic_ref<T> memory(*reinterpret_cast<T*>(at));
  T old = memory.load();
  while (!memory.compare_exchange_weak(
      old, static_cast<T>(updated(operation, old, value, compared, sizeof(T))))) {
  }
  return old;
}

U64 register_value(const Wave& w, int reg, std::size_t lane, unsigned bytes) {
  const auto first = static_cast<std::size_t>(reg);
  const U64 low = w.v[first][lane];
  return bytes == 8 ? low | static_cast<U64>(w.v[first + 1][lane]) << 32 : low;
}

// Where the operands of the forms stand.
struct Layout {
  int address;
  int value;
  int compared;  // -1: behind the value, in the registers that follow
  int scalar;
};

U64 address_of(const Wave& w, const Instruction& in, const Layout& layout, std::size_t lane,
               Space space) {
  const auto reg = in.operand[static_cast<std::size_t>(layout.address)].index;
  if (space == Space::Local) {
    return U64(w.v[static_cast<std::size_t>(reg)][lane]) + static_cast<U64>(in.offset);
  }
  if (layout.scalar < in.operands) {
    const Operand& scalar = in.operand[static_cast<std::size_t>(layout.scalar)];
    if (scalar.kind == Kind::Scalar && scalar.index != kNull) {
      return scalar64(w, scalar) + w.v[static_cast<std::size_t>(reg)][lane] +
             static_cast<U64>(in.offset);
    }
  }
  return register_value(w, reg, lane, 8) + static_cast<U64>(in.offset);
}

void perform(Wave& w, const Instruction& in, const Layout& layout, bool returns) {
  const auto operation = static_cast<Operation>(in.data & 255);
  const auto bytes = static_cast<unsigned>(in.data >> 8 & 255);
  const auto space = static_cast<Space>(in.data >> 16);
  const int registers = static_cast<int>(bytes / 4);
  const int value_reg = in.operand[static_cast<std::size_t>(layout.value)].index;
  const int compared_reg = layout.compared >= 0
                               ? in.operand[static_cast<std::size_t>(layout.compared)].index
                               : value_reg + registers;
  check_defined(w, "an address or a value of an atomic operation");
  for (U64 left = w.exec; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const auto l = static_cast<std::size_t>(lane);
    const U64 address = address_of(w, in, layout, l, space);
    const U64 value = register_value(w, value_reg, l, bytes);
    const U64 compared =
        operation == Operation::CompareSwap ? register_value(w, compared_reg, l, bytes) : 0;
    bool known = true;
    std::uint8_t* at =
        space == Space::Local
            ? local_at(w, address, bytes, lane, Use::Atomic, nullptr, &known)
            : flat_at(w, address, bytes, lane, Use::Atomic, space == Space::Flat, nullptr, &known);
    if (!known && operation != Operation::Swap) {
      throw Fault("an atomic operation reads an LDS word that was never written", lane);
    }
    const U64 old = bytes == 8 ? exchange<U64>(at, operation, value, compared)
                               : exchange<U32>(at, operation, value, compared);
    if (returns) {
      const auto to = static_cast<std::size_t>(in.operand[0].index);
      w.v[to][l] = static_cast<U32>(old);
      w.v[to + (bytes == 8 ? 1 : 0)][l] = static_cast<U32>(bytes == 8 ? old >> 32 : old);
    }
  }
  const Counter counter = space == Space::Local ? Counter::Local
                          : returns || w.gfx9   ? Counter::Vector
                                                : Counter::Store;
  const U32 number = issue(w, counter);
  w.local_writes = space == Space::Local ? number : w.local_writes;
  if (returns) {
    for (int r = 0; r < registers; ++r) {
      w.lane_defined[static_cast<std::size_t>(in.operand[0].index + r)] |= w.exec;
    }
    await_registers(w, in.operand[0].index, registers, counter);
  }
}

// global_ and flat_: with a result where glc (gfx942: sc0) is set. The compared value follows the new one.
void on_memory(Wave& w, const Instruction& in) {
  if (in.returns) {
    perform(w, in, {1, 2, -1, 3}, true);
  } else {
    perform(w, in, {0, 1, -1, 2}, false);
  }
}

// ds_cmpst has the compared value first, ds_cmpstore the new one.
void on_local(Wave& w, const Instruction& in) {
  const bool returns = in.name.find("rtn") != std::string::npos;
  const int first = returns ? 1 : 0;
  if (in.name.starts_with("ds_cmpstore")) {
    perform(w, in, {first, first + 1, first + 2, 99}, returns);
  } else if (in.name.starts_with("ds_cmpst")) {
    perform(w, in, {first, first + 2, first + 1, 99}, returns);
  } else {
    perform(w, in, {first, first + 1, -1, 99}, returns);
  }
}

struct Name {
  const char* gfx9;
  const char* gfx11;
  Operation operation;
};

constexpr Name kIntegers[] = {
    {"swap", "swap_b", Operation::Swap},     {"cmpswap", "cmpswap_b", Operation::CompareSwap},
    {"add", "add_u", Operation::Add},        {"sub", "sub_u", Operation::Subtract},
    {"smin", "min_i", Operation::MinSigned}, {"umin", "min_u", Operation::MinUnsigned},
    {"smax", "max_i", Operation::MaxSigned}, {"umax", "max_u", Operation::MaxUnsigned},
    {"and", "and_b", Operation::And},        {"or", "or_b", Operation::Or},
    {"xor", "xor_b", Operation::Xor},        {"inc", "inc_u", Operation::Increment},
    {"dec", "dec_u", Operation::Decrement}};
struct FloatName {
  const char* name;
  Operation operation;
  unsigned bytes;
};
constexpr FloatName kFloats[] = {
    {"add_f32", Operation::AddFloat, 4},     {"add_f64", Operation::AddFloat, 8},
    {"min_f32", Operation::MinFloat, 4},     {"max_f32", Operation::MaxFloat, 4},
    {"min_f64", Operation::MinFloat, 8},     {"max_f64", Operation::MaxFloat, 8},
    {"pk_add_f16", Operation::AddHalves, 4}, {"pk_add_bf16", Operation::AddBf16, 4}};

void add_on_memory(Table& rows, const std::string& prefix, Space space) {
  const auto row = [space](Operation operation, unsigned bytes) {
    // The decoder makes the first operand a result only where there is one.
    return Row{on_memory, 1, Effect::Generic, packed(operation, bytes, space)};
  };
  for (const Name& name : kIntegers) {
    rows[prefix + name.gfx9] = row(name.operation, 4);
    rows[prefix + name.gfx9 + "_x2"] = row(name.operation, 8);
    rows[prefix + name.gfx11 + "32"] = row(name.operation, 4);
    rows[prefix + name.gfx11 + "64"] = row(name.operation, 8);
  }
  for (const FloatName& name : kFloats) {
    rows[prefix + name.name] = row(name.operation, name.bytes);
  }
}

void add_local_pair(Table& rows, const std::string& verb, const std::string& type,
                    Operation operation, unsigned bytes) {
  const int data = packed(operation, bytes, Space::Local);
  rows["ds_" + verb + "_" + type] = {on_local, 0, Effect::NoResult, data};
  rows["ds_" + verb + "_rtn_" + type] = {on_local, 1, Effect::Generic, data};
}

}  // namespace

void add_atomics(Table& rows) {
  add_on_memory(rows, "global_atomic_", Space::Global);
  add_on_memory(rows, "flat_atomic_", Space::Flat);
  for (const unsigned bytes : {4U, 8U}) {
    const std::string bits = std::to_string(8 * bytes);
    add_local_pair(rows, "add", "u" + bits, Operation::Add, bytes);
    add_local_pair(rows, "sub", "u" + bits, Operation::Subtract, bytes);
    add_local_pair(rows, "rsub", "u" + bits, Operation::ReverseSubtract, bytes);
    add_local_pair(rows, "inc", "u" + bits, Operation::Increment, bytes);
    add_local_pair(rows, "dec", "u" + bits, Operation::Decrement, bytes);
    add_local_pair(rows, "min", "i" + bits, Operation::MinSigned, bytes);
    add_local_pair(rows, "max", "i" + bits, Operation::MaxSigned, bytes);
    add_local_pair(rows, "min", "u" + bits, Operation::MinUnsigned, bytes);
    add_local_pair(rows, "max", "u" + bits, Operation::MaxUnsigned, bytes);
    add_local_pair(rows, "and", "b" + bits, Operation::And, bytes);
    add_local_pair(rows, "or", "b" + bits, Operation::Or, bytes);
    add_local_pair(rows, "xor", "b" + bits, Operation::Xor, bytes);
    add_local_pair(rows, "wrxchg", "b" + bits, Operation::Swap, bytes);
    add_local_pair(rows, "storexchg", "b" + bits, Operation::Swap, bytes);
    add_local_pair(rows, "cmpst", "b" + bits, Operation::CompareSwap, bytes);
    add_local_pair(rows, "cmpstore", "b" + bits, Operation::CompareSwap, bytes);
    add_local_pair(rows, "add", "f" + bits, Operation::AddFloat, bytes);
    add_local_pair(rows, "min", "f" + bits, Operation::MinFloat, bytes);
    add_local_pair(rows, "max", "f" + bits, Operation::MaxFloat, bytes);
  }
  add_local_pair(rows, "pk_add", "f16", Operation::AddHalves, 4);
  add_local_pair(rows, "pk_add", "bf16", Operation::AddBf16, 4);
}

}  // namespace amdgpu_emulator
