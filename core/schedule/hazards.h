// Which steps may run side by side: what each must come after, by the memory that it touches; and
// which of those that run side by side should go first.
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

// For each step, in ascending order, the earlier ones that it must come after: those that wrote
// what it touches, and those that read what it writes. None that another of them comes after
// anyhow.
std::vector<std::vector<int>> hazards(std::span<const std::vector<Access>> steps);

// From what each step must come after: which of them can hardly wait, being on chains as long as
// the longest one or shorter by up to an eighth of it. The way back through the layers of a model
// is, the gradients of weights beside it are not. Steps count alike, however long they take.
std::vector<bool> urgent_steps(std::span<const std::vector<int>> after);

}  // namespace tinyshard
