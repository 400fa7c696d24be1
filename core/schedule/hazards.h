// Decides which steps may run side by side, from the memory that each touches, and which of them
// should go first.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tinyshard {

// Bytes [begin, end) of a memory; memories are told apart by a number.
struct Access {
  uint64_t memory;
  int64_t begin, end;
  bool written;
};

// Returns for each step the earlier ones that it must come after, in ascending order: those that
// wrote what it touches, and those that read what it writes. Steps that another one of the list
// comes after are left out, unless they lie more than 8192 steps back, where nobody looks: that they
// stay there changes no order.
std::vector<std::vector<int>> hazards(std::span<const std::vector<Access>> steps);

// Returns which steps are urgent. `after`: what each step must come after. A step is urgent if it
// is on a chain that is at most an eighth shorter than the longest one, as is the way back through
// the layers of a model; gradients of weights beside it are not. Each step counts as one, however
// long it takes.
std::vector<bool> urgent_steps(std::span<const std::vector<int>> after);

}  // namespace tinyshard
