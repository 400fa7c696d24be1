// Which steps may run side by side: what each must come after, by the memory that it touches.
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

}  // namespace tinyshard
