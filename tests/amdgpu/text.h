// The pieces of an instruction's text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/amdgpu/instruction.h"

namespace amdgpu_emulator {

// Splits at `separator` outside of brackets; pieces are trimmed.
std::vector<std::string> split_outside(std::string_view text, char separator);

Operand parse_operand(std::string_view text, bool wave64);

// Sets what a modifier says, e.g. "offset:16" or "row_shr:1". Fails with a Fault where it is unknown.
void parse_modifier(Instruction& in, std::string_view text);

}  // namespace amdgpu_emulator
