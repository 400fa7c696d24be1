// Where a rank stands, as its detector tells the others.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "transport/detector/beat.h"

namespace tinyshard::detector {

struct Standing {
  Doing doing;
  uint64_t calls = 0;  // made so far
  // The program waits: for these ranks, each of which may or may not have come to that call.
  struct Awaited {
    int rank;
    CallNumber call;
  };
  std::vector<Awaited> awaited = {};
  std::vector<uint64_t> answers = {};  // how many calls were made of each place that was asked for
};

// `places` has an element for each rank: where that rank waits for this one, or kNoPlace.
using Look = std::function<Standing(std::span<const uint64_t> places)>;

}  // namespace tinyshard::detector
