// What a schedule will do, for people: items, bytes, memory, without running it.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/schedule/schedule.h"

namespace tinyshard {

struct PlanSummary {
  int64_t kernels = 0, library_calls = 0, collectives = 0, copies = 0;
  int64_t bytes_read = 0, bytes_written = 0;  // by kernels and library calls, per device
  int64_t collective_bytes = 0;               // sent by each device (ring algorithms)
  std::map<std::string, int64_t>
      collective_kinds;     // "all_reduce over data" -> bytes sent by each device
  int64_t held_bytes = 0;   // storages that live on, per device
  int64_t arena_bytes = 0;  // temporaries, per device
  int64_t devices = 1;      // of the largest mesh
  int64_t peak_bytes() const { return held_bytes + arena_bytes; }
};
PlanSummary summarize(const Schedule& schedule);

// The summary as text; with `items`, one line for each of them as well, and the temporaries that
// are alive where they take most memory.
std::string explain(const Schedule& schedule, bool items = false);

}  // namespace tinyshard
