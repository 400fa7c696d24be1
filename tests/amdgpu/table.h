// The table of instructions: for each name its handler and how its operands are read. Each file of a class of instructions
// has a function that adds its rows.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "tests/amdgpu/instruction.h"

namespace amdgpu_emulator {

enum class Effect : std::uint8_t {
  Generic,   // leading operands are results, the others sources
  Partial,   // the results are sources, too
  NoResult,  // all operands are sources
  Own        // the handler itself checks what it reads and writes
};

struct Row {
  Handler run = nullptr;
  int results = 1;
  Effect effect = Effect::Generic;
  int data = 0;
};

using Table = std::unordered_map<std::string, Row>;

const Table& table();

void add_scalar(Table& rows);
void add_flow(Table& rows);
void add_float(Table& rows);
void add_double(Table& rows);
void add_half(Table& rows);
void add_integer(Table& rows);
void add_wide_integer(Table& rows);
void add_conversions(Table& rows);
void add_comparisons(Table& rows);
void add_lanes(Table& rows);
void add_packed(Table& rows);
void add_matrix(Table& rows);
void add_memory(Table& rows);
void add_scalar_memory(Table& rows);
void add_local(Table& rows);
void add_atomics(Table& rows);

}  // namespace amdgpu_emulator
