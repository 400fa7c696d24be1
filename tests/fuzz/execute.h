// Runs a program with the library, in one of several ways that must all give the same.
#pragma once
#include <string>
#include <vector>

#include "tests/fuzz/program.h"

namespace fuzz {

// Lazy: all roots in one run. Apart: each root by itself. Barriers: each value is contiguous().
// Steps: each value is realized before the next. Captured: as a Jit. Disturbed: of programs with
// gradients, which are taken after values were read, random numbers drawn and a state written.
// Troubled: as a Jit whose first trace fails half-way, that is called in changing modes and has to be
// traced for each, and whose gradients add up over two calls and are read behind them.
enum class Way : uint8_t { Lazy, Apart, Barriers, Steps, Captured, Disturbed, Troubled };
inline constexpr const char* kWays[] = {"lazy",     "apart",     "barriers", "steps",
                                        "captured", "disturbed", "troubled"};

// A value as it was read.
struct Result {
  std::string type;
  Shape shape;
  std::vector<std::byte> data;
};
// Per call: the roots, then the gradients of the targets, and at the last call the states.
using Results = std::vector<std::vector<Result>>;

// Placed: leaves lie on the program's mesh as their placements say.
Results execute(const Program& program, Way way, bool placed);

// The expression of a step in C++, where `names` are its operands.
std::string expression(const Step& step, const std::vector<std::string>& names);
// Returns whether Way::Disturbed reads value v.
bool is_disturbed(const Program& program, int v);
// Returns whether the library's side knows the op.
bool can_execute(const std::string& op);

}  // namespace fuzz
