// Cuts what several devices of a process do into segments. A recording holds what the same devices do
// without a value from elsewhere, so steps between which devices send to each other are no recording
// as a whole. Between two sends they are:
//
//   steps      A0  B0  A1  A to B  B1  A2  B2  B to A  A3          A0: step 0 of device A
//   segments   [A0 A1] [B0] A to B [A2] [B1 B2] B to A [A3]
//
// A segment is told to its devices as one; steps of other devices that lie between are told before or
// after it, which makes no difference to either.
#pragma once
#include <span>
#include <vector>

namespace tinyshard {

// The devices that a step concerns, by number and ascending, those that it reads from included.
struct StepToCut {
  std::vector<int> devices;
  bool recorded = false;  // whether a recording may hold it
};

struct Segment {
  std::vector<int> steps;    // in their order
  std::vector<int> devices;  // of each of the steps
  bool recorded = false;     // false: a single step that no recording holds, or few steps
};

// Segments in the order in which devices are told. For each device its steps stay in their order.
// Segments of fewer steps than `fewest` are not recorded.
std::vector<Segment> cut_into_segments(std::span<const StepToCut> steps, size_t fewest);

}  // namespace tinyshard
