// Tells from the rings of a job how fast its ranks go, and which of them the others wait for.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "transport/recorder/ring_reader.h"

namespace tinyshard::recorder {

// The figures of one rank over its last runs: ten, or as many as its ring holds.
struct RankActivity {
  uint64_t run = 0;       // number of the run under way, counted by its context from 1
  double runs_per_s = 0;  // falls when a run takes longer than those before it
  double in_calls = 0;    // share of the time in which a collective was under way, from 0 to 1
  // Seconds by which it came to a collective of a run after the first rank, at most and less what it waited
  // itself in that time; the mean of the runs.
  double late_per_run = 0;
  int64_t calls = 0;  // collectives that were compared with those of other ranks
};

// Returns a row for each ring, in their order. `now_ns` is the wall clock's. Ranks of several hosts are
// compared by their wall clocks: lateness is as exact as these agree. Steps that a GPU replays as one
// recording tell no collectives, so only their runs are counted.
std::vector<RankActivity> activities(std::span<const RankRing> rings, int64_t now_ns);

// Returns the index of the ring whose rank holds the others up: it comes to collectives later than any
// other by more than a twentieth of the time. -1: there is none.
int slowest(std::span<const RankActivity> ranks);

}  // namespace tinyshard::recorder
