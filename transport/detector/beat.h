// What ranks tell each other ten times a second, beside the channel that moves their data. Plain
// bytes on the wire, of one size, over connections that have proven the job's key.
#pragma once
#include <array>
#include <cstdint>

#include "core/runtime/communicator.h"

namespace tinyshard::detector {

// The oldest collective that a rank waits in, if it waits.
struct Doing {
  uint64_t group = 0, sequence = 0, count = 0, counts_hash = 0;
  uint32_t waited_ms = 0;
  uint8_t waits = 0, op = 0, reduce = 0, dtype = 0;
  std::array<char, 32> group_name = {};
  std::array<char, 32> source = {};  // of the call, "train.cpp:21"
};

enum class BeatKind : uint32_t { Beat = 1, Farewell = 2 };

struct Beat {
  uint32_t magic = 0x54425354;  // "TSBT"
  BeatKind kind = BeatKind::Beat;
  uint64_t number = 0;
  Doing doing;
};
static_assert(sizeof(Beat) == 120);

}  // namespace tinyshard::detector
