// Which kernels are fused, and in which order: what fused.h makes of two of them has to leave each
// in-place store safe (task.h), and no dependency may lead through a third task.
#include "core/schedule/vertical.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/schedule/fused.h"
#include "core/schedule/schedule_state.h"
#include "core/schedule/turns.h"

namespace tinyshard {
namespace {

constexpr size_t kFusedBuffers = 48;
// Only so many nearest readers before a kernel are looked at: all layers may read one table.
constexpr size_t kNear = 32;
constexpr int64_t kLargeBuffer = 1 << 12;  // elements that are worth reading once instead of twice

class Fuser {
 public:
  explicit Fuser(ScheduleState& state)
      : tasks_(state.tasks),
        buffers_(state.schedule.buffers),
        dependencies_(*state.dependencies),
        fuse_(state.free_ranges) {}

  // `order`: of the tasks before any fusion.
  void vertically(std::span<const int> order) {
    for (int producer : order) {
      if (!tasks_[producer].draft) continue;
      std::vector<int> next = dependencies_.after(producer);
      std::ranges::sort(next, {}, [&](int t) { return std::pair(tasks_[t].position, t); });
      for (int consumer : next) {
        if (tasks_[consumer].draft && into_consumer(producer, consumer)) break;
      }
    }
  }

  // Kernels over the same loops that read the same large buffer read it once.
  void siblings(std::span<const int> order) {
    prepared_ = prepared_turns(tasks_);
    std::map<int, std::vector<int>> readers;  // by buffer, in order
    for (int t : order) {
      if (tasks_[t].gone || !tasks_[t].draft) continue;
      const std::vector<int> reads = tasks_[t].reads;  // fusion changes the task's own list
      for (int b : reads) {
        if (buffers_[b].numel() < kLargeBuffer) continue;
        const std::vector<int>& all = readers[b];
        for (int other : std::span(all).last(std::min(all.size(), kNear))) {
          if (other != t && !tasks_[other].gone && tasks_[other].draft) beside(other, t);
        }
      }
      for (int b : tasks_[t].reads) readers[b].push_back(t);
    }
  }

 private:
  // A kernel that has more than may be fused has no fewer with another one: what it reads of that is
  // written then.
  bool has_many_buffers(int t) const {
    return tasks_[t].reads.size() + tasks_[t].writes.size() > kFusedBuffers;
  }

  bool into_consumer(int p, int c) {
    const KernelDraft &producer = *tasks_[p].draft, &consumer = *tasks_[c].draft;
    if (has_many_buffers(c) || !(producer.mesh == consumer.mesh)) return false;
    std::optional<FusedKernel> fused = fuse_.into_consumer(producer, consumer);
    // Last, as it takes the longest: readers of one value may be far apart, in both ways through a
    // model.
    return fused && !dependencies_.detour(p, c) && adopt(p, c, std::move(*fused));
  }

  bool beside(int a, int b) {
    const KernelDraft &one = *tasks_[a].draft, &other = *tasks_[b].draft;
    if (has_many_buffers(a) || has_many_buffers(b)) return false;
    if (prepared_[size_t(a)] != prepared_[size_t(b)] || !(one.mesh == other.mesh)) return false;
    if (!KernelFuser::same_loops(one, other)) return false;
    if (dependencies_.reaches(a, b) || dependencies_.reaches(b, a)) return false;
    std::optional<FusedKernel> fused = fuse_.beside(one, other);
    return fused && adopt(a, b, std::move(*fused));
  }

  bool adopt(int from, int into, FusedKernel fused) {
    if (!in_place_is_safe(fused.draft, fused.loads, buffers_)) return false;
    Accesses accesses = accesses_of(fused.draft, fused.loads);
    if (accesses.reads.size() + accesses.writes.size() > kFusedBuffers) return false;
    Task &task = tasks_[into], &gone = tasks_[from];
    task.draft = std::move(fused.draft);
    task.reads = std::move(accesses.reads);
    task.writes = std::move(accesses.writes);
    task.position = std::max(task.position, gone.position);
    gone.gone = true;
    gone.draft.reset();
    gone.reads.clear();
    gone.writes.clear();
    dependencies_.merge(from, into);
    return true;
  }

  std::vector<Task>& tasks_;
  const std::vector<VirtualBuffer>& buffers_;
  Dependencies& dependencies_;
  KernelFuser fuse_;
  std::vector<int64_t> prepared_;  // of siblings: what is sent for one turn is made for that turn
};

}  // namespace

void fuse_vertically(ScheduleState& state) { Fuser(state).vertically(state.drafted); }
void fuse_siblings(ScheduleState& state) { Fuser(state).siblings(state.drafted); }

void drop_unread(ScheduleState& state) {
  const std::vector<VirtualBuffer>& buffers = state.schedule.buffers;
  std::vector<char> needed(buffers.size());
  for (size_t b = 0; b < buffers.size(); ++b) {
    needed[b] = buffers[b].output || buffers[b].storage || first_version(buffers, int(b)) != int(b);
  }
  for (const Task& task : state.tasks) {
    for (int b : task.reads) needed[b] = true;
  }
  for (Task& task : state.tasks) {
    if (!task.draft || task.draft->outputs.size() < 2) continue;
    size_t dropped =
        std::erase_if(task.draft->outputs, [&](const auto& out) { return !needed[out.buffer]; });
    if (dropped > 0) update_accesses(task);
  }
}

}  // namespace tinyshard
