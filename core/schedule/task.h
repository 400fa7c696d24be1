// An item before the order is known: what the steps between lowering and order work on.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/schedule/lower.h"

namespace tinyshard {

// A kernel draft, or an op that runs on its own.
struct Task {
  std::optional<KernelDraft> draft;
  std::unique_ptr<Item> item;  // where there is no draft: most tasks have one, and items are large
  bool nothing = false;        // only ordered, not run: a value that is there already
  std::vector<int> reads, writes;  // buffers
  int position = 0;                // of its value in the topological order of the graph
  bool gone = false;               // fused into another task
  // A collective that gathers a parameter on use has the turn of its block (core/passes/regather.h)
  // and how many turns ahead it runs. It is in no hurry otherwise.
  int64_t turn = 0;
  int prefetch = 0;
  Item::Kind kind() const { return item ? item->kind : Item::Kind::Kernel; }
  std::string describe() const;
};

// Buffers that a draft reads and writes, from its expressions; `nodes` are all_nodes of it, or its
// loads.
struct Accesses {
  std::vector<int> reads, writes;
};
Accesses accesses_of(const KernelDraft& draft, std::span<const UOp> nodes);
// The accesses of a task with a draft.
void update_accesses(Task& task);
void update_accesses(Task& task, std::span<const UOp> nodes);

// Returns the earliest buffer that `buffer` is a version or further name of: both are one memory.
int first_version(const std::vector<VirtualBuffer>& buffers, int buffer);

// True when every load of memory that the draft also writes has the index of that store.
// `nodes`: all_nodes of the draft, or its loads.
bool in_place_is_safe(const KernelDraft& draft, std::span<const UOp> nodes,
                      const std::vector<VirtualBuffer>& buffers);

}  // namespace tinyshard
