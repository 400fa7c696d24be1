// Which memory a task touches, and whether a kernel may run in place.
//
//   b1 is a version of b0 (an assigned storage): first_version(b1) is b0. A kernel that stores
//   b1[i] = b0[i] + 1 is in place and safe; b1[i] = b0[9 - i] is not: b0[9] is gone when i is 9.
#include "core/schedule/task.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/rewrite/pattern.h"
#include "core/schedule/memory.h"
#include "core/uop/args.h"

namespace tinyshard {

std::string Task::describe() const {
  std::string what = nothing ? "order" : item ? item->describe() : "kernel over";
  if (draft) {
    for (const UOp& r : draft->loops) what += fmt::format(" {}", range_arg(*r).size);
  }
  return fmt::format("{} reads {} writes {}", what, fmt::join(reads, " "), fmt::join(writes, " "));
}

int first_version(const std::vector<VirtualBuffer>& buffers, int buffer) {
  for (;;) {
    buffer = earliest_version(buffers, buffer);
    const VirtualBuffer& b = buffers[size_t(buffer)];
    const bool is_name = b.container >= 0 && b.container_offset == 0 &&
                         b.bytes() == buffers[size_t(b.container)].bytes();
    if (!is_name) return buffer;
    buffer = b.container;
  }
}

void update_accesses(Task& task) { update_accesses(task, all_nodes(*task.draft)); }

void update_accesses(Task& task, std::span<const UOp> nodes) {
  Accesses accesses = accesses_of(*task.draft, nodes);
  task.reads = std::move(accesses.reads);
  task.writes = std::move(accesses.writes);
}

Accesses accesses_of(const KernelDraft& draft, std::span<const UOp> nodes) {
  Accesses result;
  for (const auto& out : draft.outputs) result.writes.push_back(out.buffer);
  for (const UOp& x : nodes) {
    if (x.op() != Op::Load) continue;
    int b = draft.buffer_of(x);
    if (std::ranges::find(result.reads, b) == result.reads.end()) result.reads.push_back(b);
  }
  return result;
}

bool in_place_is_safe(const KernelDraft& draft, std::span<const UOp> nodes,
                      const std::vector<VirtualBuffer>& buffers) {
  std::vector<int> stored;  // memories, by output
  for (const auto& out : draft.outputs) {
    const int memory = first_version(buffers, out.buffer);
    if (std::ranges::find(stored, memory) != stored.end()) return false;
    stored.push_back(memory);
  }
  for (const UOp& x : nodes) {
    if (x.op() != Op::Load) continue;
    auto found = std::ranges::find(stored, first_version(buffers, draft.buffer_of(x)));
    if (found == stored.end()) continue;
    if (!(x.src(1) == draft.outputs[size_t(found - stored.begin())].index)) return false;
  }
  return true;
}

}  // namespace tinyshard
