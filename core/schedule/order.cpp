#include "core/schedule/order.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/schedule/memory.h"

namespace tinyshard {
namespace {

constexpr int64_t kLittle = 16;  // a result counts as small beside this many times its bytes read

// Bytes of others behind a collective after which it is taken to be done: what waits for it is held
// back no longer, and lets go of memory that the collective used.
constexpr int64_t kBehind = int64_t{64} << 20;

class Order {
 public:
  Order(std::span<const Task> tasks, const std::vector<VirtualBuffer>& buffers,
        const Dependencies& dependencies)
      : tasks_(tasks),
        buffers_(buffers),
        dependencies_(dependencies),
        users_(buffers.size()),
        begun_(buffers.size()),
        travels_(buffers.size()),
        sent_(tasks.size()),
        touched_(tasks.size()) {
    for (int t = 0; t < int(tasks.size()); ++t) {
      for (int b : tasks[t].reads) {
        if (is_collective(t)) travels_[b] = true;
      }
      for (int b : tasks[t].reads) touch(t, b);
      for (int b : tasks[t].writes) touch(t, b);
      for (int m : touched_[t]) ++users_[m];
    }
  }

  std::vector<int> run() {
    std::vector<size_t> missing(tasks_.size());
    size_t wanted = 0;
    for (int t = 0; t < int(tasks_.size()); ++t) {
      if (tasks_[t].gone) continue;
      ++wanted;
      missing[t] = dependencies_.before(t).size();
      if (missing[t] == 0) make_ready(t);
    }
    std::vector<int> result;
    while (!ready_.empty()) {
      auto next = std::ranges::find_if(ready_, [&](int t) { return is_eager(t); });
      if (next == ready_.end()) next = ready_.begin();
      int t = *next;
      ready_.erase(next);
      result.push_back(t);
      for (int p : dependencies_.before(t)) {
        // Collectives run in order: to wait for one is to wait for those before it.
        if (is_collective(p)) done_ = std::max(done_, sent_[p]);
      }
      if (is_collective(t)) sent_[t] = sent_so_far_ += bytes_read(t);
      for (int m : touched_[t]) {
        begun_[m] = true;
        --users_[m];
      }
      for (int n : dependencies_.after(t)) {
        if (--missing[n] == 0) make_ready(n);
      }
    }
    check_internal(result.size() == wanted,
                   "items of a schedule do not wait for each other in a circle");
    return result;
  }

 private:
  void touch(int t, int b) {
    int m = memory_holder(buffers_, b);
    if (std::ranges::find(touched_[t], m) == touched_[t].end()) touched_[t].push_back(m);
  }

  // Copies that wait for nothing lead: they bring what comes from elsewhere, and what follows them
  // can be recorded (core/exec/replay.h).
  bool leads(int t) const {
    return tasks_[t].item.kind == Item::Kind::Copy && dependencies_.before(t).empty();
  }

  void make_ready(int t) {
    auto before = [&](int a, int b) {
      if (leads(a) != leads(b)) return leads(a);
      return std::pair(tasks_[a].position, a) < std::pair(tasks_[b].position, b);
    };
    ready_.insert(std::ranges::upper_bound(ready_, t, before), t);
  }

  bool is_collective(int t) const { return tasks_[t].item.kind == Item::Kind::Collective; }

  // Whether t would wait for a collective on its way, which others can run beside.
  bool waits(int t) const {
    return std::ranges::any_of(dependencies_.before(t), [&](int p) {
      return is_collective(p) && sent_[p] > done_ && sent_so_far_ - sent_[p] < kBehind;
    });
  }

  int64_t bytes_read(int t) const {
    int64_t bytes = 0;
    for (int b : tasks_[t].reads) bytes += buffers_[b].bytes();
    return bytes;
  }

  bool is_eager(int t) const {
    if (leads(t) || is_collective(t)) return true;
    if (waits(t)) return false;
    auto travels = [&](int b) { return bool(travels_[b]); };
    if (!tasks_[t].writes.empty() && std::ranges::all_of(tasks_[t].writes, travels)) return true;
    int64_t change = 0;
    for (int m : touched_[t]) {
      const VirtualBuffer& b = buffers_[m];
      if (b.storage || b.output) continue;
      if (!begun_[m]) change += b.bytes();
      if (users_[m] == 1) change -= b.bytes();
    }
    return change <= bytes_read(t) / kLittle;
  }

  std::span<const Task> tasks_;
  const std::vector<VirtualBuffer>& buffers_;
  const Dependencies& dependencies_;
  std::vector<int> users_;                 // of a memory, that have not run
  std::vector<bool> begun_;                // memories that hold something
  std::vector<bool> travels_;              // buffers that a collective sends
  std::vector<int64_t> sent_;              // by a collective and all before it, in bytes
  int64_t sent_so_far_ = 0, done_ = 0;     // by all; by those that somebody has waited for
  std::vector<std::vector<int>> touched_;  // memories of a task
  std::vector<int> ready_;                 // by position
};

}  // namespace

std::vector<int> execution_order(std::span<const Task> tasks,
                                 const std::vector<VirtualBuffer>& buffers,
                                 const Dependencies& dependencies) {
  return Order(tasks, buffers, dependencies).run();
}

}  // namespace tinyshard
