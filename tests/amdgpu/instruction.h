// An instruction as the emulator executes it: operands by index, modifiers as numbers, and the function that carries it
// out. It is made once for each address of a code object, from the text that LLVM's disassembler prints.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace amdgpu_emulator {

struct Wave;
struct Instruction;
using Handler = void (*)(Wave&, const Instruction&);

// Every register of a wave has one number: vector registers, accumulators, then scalars.
constexpr int kAccumulators = 256;
constexpr int kScalars = 512;
constexpr int kRegisters = 640;
// Numbers among the scalars; those of m0 and null are the emulator's own.
constexpr int kFlatScratch = 102;
constexpr int kVcc = 106;
constexpr int kM0 = 124;
constexpr int kNull = 125;
constexpr int kExec = 126;

enum class Kind : std::uint8_t { None, Vector, Scalar, Constant, Scc, VccZero, ExecZero, Name };

struct Operand {
  Kind kind = Kind::None;
  bool negate = false;
  bool absolute = false;
  bool sign_extend = false;
  bool high_half = false;  // v0.h
  int index = 0;           // among the vector registers and accumulators, or among the scalars
  int count = 1;           // registers
  // A constant as operands of each width see it; a literal of 32 bits is the upper half of an f64.
  std::uint16_t bits16 = 0;
  std::uint32_t bits32 = 0;
  std::uint64_t bits64 = 0;
  std::uint64_t bits_f64 = 0;
  std::string name;  // hwreg(...), sendmsg(...) and the like
};

enum class LaneMove : std::uint8_t {
  None,
  QuadPerm,
  RowShl,
  RowShr,
  RowRor,
  WaveShl,
  WaveRol,
  WaveShr,
  WaveRor,
  RowMirror,
  RowHalfMirror,
  Bcast15,
  Bcast31,
  RowShare,
  RowXmask,
  Dpp8
};

enum class Select : std::uint8_t { Byte0, Byte1, Byte2, Byte3, Word0, Word1, Dword };

// Ranges of registers that an instruction reads or writes as a whole.
struct RegisterRange {
  std::int16_t first;
  std::int16_t count;
};

struct Instruction {
  Handler run = nullptr;
  std::uint32_t size = 4;  // bytes
  int operands = 0;
  int results = 0;  // leading operands that are written
  std::array<Operand, 8> operand;
  std::vector<RegisterRange> reads;
  std::vector<RegisterRange> writes;

  std::int64_t offset = 0;
  std::uint32_t offset0 = 0;
  std::uint32_t offset1 = 0;
  std::uint32_t op_sel = 0;
  std::uint32_t op_sel_hi = ~0U;
  std::uint32_t negate_low = 0;
  std::uint32_t negate_high = 0;
  bool clamp = false;
  int output_scale = 0;  // a power of two
  bool returns = false;  // an atomic gives the old value
  bool loads = false;    // from global memory into vector registers
  bool idxen = false;
  bool offen = false;
  bool gds = false;
  int cbsz = 0;
  int abid = 0;
  int blgp = 0;

  LaneMove move = LaneMove::None;
  std::uint32_t move_argument = 0;
  std::uint32_t row_mask = 15;
  std::uint32_t bank_mask = 15;
  bool bound_control = false;
  bool fetch_inactive = false;

  bool sdwa = false;
  Select result_select = Select::Dword;
  int unused = 0;  // 0 pads with zeros, 1 extends the sign, 2 preserves
  std::array<Select, 2> source_select = {Select::Dword, Select::Dword};

  int data = 0;                         // free for the handler: an element count, a comparison
  std::unique_ptr<Instruction> second;  // the other half of a dual instruction

  std::string name;  // without the suffix of the encoding
  std::string text;
};

}  // namespace amdgpu_emulator
