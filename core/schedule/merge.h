// Kernels that can share their loops become one kernel with several outputs.
#pragma once
#include <optional>
#include <vector>

#include "core/schedule/lower.h"

namespace tinyshard {

// An item before the order is known: a kernel draft or an op that runs on its own.
struct Task {
  std::optional<KernelDraft> draft;
  Item item;                       // when there is no draft
  bool nothing = false;            // only ordered, not run: a value that is there already
  std::vector<int> reads, writes;  // buffers
  int position = 0;                // of its value in the topological order of the graph
  bool gone = false;               // merged into another task
};

// Orders the loops so that every fold is computed once: the loops that a fold depends on come
// first. Returns the fold that cannot be placed like that (or would leave too little parallel
// work, unless `serial` allows that), or a stored value that cannot; null when all is well.
UOp arrange_loops(KernelDraft& draft, FreeRanges& free_ranges, bool serial = false);

// Merges producers into their consumers and siblings that read the same buffer, until nothing more
// fits; stores that nobody reads any more are dropped.
void merge_kernels(std::vector<Task>& tasks, const std::vector<VirtualBuffer>& buffers);

// Reads and writes of a draft, from its expressions.
void update_accesses(Task& task);

// What `buffer` is a later version or a further name of, the earliest one: both are one memory.
int first_version(const std::vector<VirtualBuffer>& buffers, int buffer);

// True when every load of memory that the draft also writes has the index of that store.
bool in_place_is_safe(const KernelDraft& draft, const std::vector<VirtualBuffer>& buffers);

}  // namespace tinyshard
