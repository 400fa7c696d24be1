// Blames a rank for what became of a job, by the rings of all ranks together.
#pragma once
#include <span>
#include <string>

#include "transport/recorder/ring_reader.h"

namespace tinyshard::recorder {

struct Verdict {
  int culprit = -1;  // a rank; -1: nobody is to blame
  FailureCause cause = FailureCause::Unknown;
  std::string sentence;
};

// Finds the rank that is gone, stopped, late or diverged, where that was, and what the others wait
// for. At least one ring; `now_ns` is the wall clock's.
Verdict blame(std::span<const RankRing> rings, int64_t now_ns);

// Tells what became of a job: the sentence of `blame`, after a line for each earlier formation where
// there are some: "formation 0 of ranks 0, 1, 2, 3: rank 2 (process 812 on node02) is gone: ...".
// Ranks within a formation are as it numbers them, its own list as they were launched.
std::string tell(const JobRings& job, int64_t now_ns);

// Returns "runs", "stopped", "silent" (no sign for three seconds, of a process out of sight), "gone",
// "ended" or "failed".
std::string state_of(const RankRing& ring, int64_t now_ns);
// Tells what a rank does: "waits for 0.3 s in all_reduce ...", "computes for 0.1 s after ...".
std::string what_rank_does(const RankRing& ring, int64_t now_ns);

// A line for each rank: where it runs, and what it does.
std::string what_ranks_do(std::span<const RankRing> rings, int64_t now_ns);

}  // namespace tinyshard::recorder
