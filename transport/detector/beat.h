// Heartbeats: ranks send them ten times a second, beside the channel that moves their data. Plain
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
  std::array<char, 32> label = {};   // of a call that is no collective of the program, "a split"
};

// A call by its number among those of one place: a group, the sends or the receives between two of
// its participants, or the set-up messages between two ranks (kSetUp).
struct CallNumber {
  uint64_t place = 0, number = 0;
};
inline constexpr uint64_t kSetUp = 0;
inline constexpr uint64_t kNoPlace = ~uint64_t{0};
inline constexpr uint64_t kUnknown = ~uint64_t{0};  // in the place of a count of calls

// A rank that has not come to the call in which another one waits. `calls` is what it had made by
// then: where it has made more since, it may have come.
struct Missed {
  int32_t rank = -1;
  uint32_t unused = 0;
  uint64_t calls = 0;
};

// The wait of a rank's program for others, if it waits. It makes no call until they come.
struct Held {
  uint64_t calls = 0;  // that this rank has made so far
  uint64_t waits = 0;  // 0: it does not wait, or not for long
  std::array<Missed, 4> missed = {};
};

enum class BeatKind : uint32_t { Beat = 1, Farewell = 2 };

struct Beat {
  uint32_t magic = 0x32545354;  // "TST2"
  BeatKind kind = BeatKind::Beat;
  uint64_t number = 0;
  Doing doing;
  Held held;
  // For the rank that this goes to: the call in which it is waited for, and of the place that it asked
  // for last how many calls were made here.
  CallNumber asks = {kNoPlace, 0};
  CallNumber answers = {kNoPlace, kUnknown};
};
static_assert(sizeof(Beat) == 264);

}  // namespace tinyshard::detector
