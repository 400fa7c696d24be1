// Tells what a schedule will do, without running it: items, bytes, memory; for programs and people.
#pragma once
#include <string>

#include "core/exec/plan_summary.h"
#include "core/schedule/schedule.h"

namespace tinyshard {

PlanSummary summarize(const Schedule& schedule);

// The work of an item on one device: bytes of distinct elements, a library's call of its whole buffers
// (a scatter into a storage of the rows that it may change), and arithmetic (PlanSummary::operations).
struct ItemWork {
  int64_t bytes_read = 0, bytes_written = 0;
  double operations = 0;
};
ItemWork work_of(const Schedule& schedule, const Item& item);
// "3.0 MiB, 1.2 M operations"; with the time that it took "3.0 MiB, 21.0 GB/s, 8.0 GFLOPS".
std::string told(const ItemWork& work);
std::string told(const ItemWork& work, double seconds);

// The origin of what an item makes: what it is for and the line that it comes from, if they are
// known. "gradient of h.0.attn.weight, h.0.attn.bias and 10 more", "train.cpp:21 and 3 more".
struct ItemOrigin {
  std::string purpose, source;
};
ItemOrigin origin_of_item(const Schedule& schedule, const Item& item);

// The summary as text; with `items`, one line for each of them as well, and the temporaries that
// are alive where they take most memory.
std::string explain(const Schedule& schedule, bool items = false);

// Tells, for a device on which a schedule does not fit, the largest storages by their labels, and
// the largest temporaries that are alive at the peak.
std::string largest_values(const Schedule& schedule);

}  // namespace tinyshard
