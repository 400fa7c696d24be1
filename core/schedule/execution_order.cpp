// List scheduling: of the tasks that are ready, the first one by position that is eager runs next,
// or the first one of all.
//
//   position   1 p = x.matmul(w)   2 q = relu(p)   3 s = sum(p * p)   4 t = q.matmul(v)
//   order      1, 2, 3, 4: 3 is eager when 2 is done (it frees p and makes little), so p does not
//              live on until somebody asks for s
//
// Whether a task is eager changes with the memories that it touches, when one comes to hold
// something or has one user left, and with collectives on their way. It is looked at again then,
// and not whenever something runs: n tasks take n log n steps.
#include "core/schedule/execution_order.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/schedule/memory.h"
#include "core/schedule/turns.h"

namespace tinyshard {
namespace {

constexpr int64_t kSmallBeside =
    16;  // a result counts as small beside this many times its bytes read

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
        touched_(tasks.size()),
        users_of_(buffers.size()),
        place_(tasks.size()),
        turns_(tasks, dependencies) {
    for (int t = 0; t < int(tasks.size()); ++t) {
      for (int b : tasks[t].reads) {
        if (is_collective(t)) travels_[b] = true;
      }
      for (int b : tasks[t].reads) touch(t, b);
      for (int b : tasks[t].writes) touch(t, b);
      for (int m : touched_[t]) {
        ++users_[m];
        users_of_[m].push_back(t);
      }
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
    for (;;) {
      if (ready_.empty()) {
        if (!turns_.any_closed()) break;
        make_all_ready(turns_.open_next());
        continue;
      }
      Place next = eager_.empty() ? *ready_.begin() : *eager_.begin();
      int t = std::get<2>(next);
      ready_.erase(next);
      eager_.erase(next);
      may_wait_.erase(next);
      place_[t].reset();
      result.push_back(t);
      bool collectives_moved = is_collective(t);
      for (int p : dependencies_.before(t)) {
        // Collectives run in order: to wait for one is to wait for those before it.
        if (!is_collective(p) || sent_[p] <= done_) continue;
        done_ = sent_[p];
        collectives_moved = true;
      }
      if (is_collective(t)) sent_[t] = sent_so_far_ += bytes_read(t);
      for (int m : touched_[t]) {
        const bool begins = !begun_[m];
        begun_[m] = true;
        if (--users_[m] == 1 || begins) changed_.push_back(m);
      }
      for (int n : dependencies_.after(t)) {
        if (--missing[n] == 0) make_ready(n);
      }
      make_all_ready(turns_.opened_by(t));
      for (int m : changed_) {
        for (int user : users_of_[m]) look_again(user);
      }
      changed_.clear();
      if (collectives_moved) {
        for (const Place& waiting : may_wait_) look_again(std::get<2>(waiting));
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
    return tasks_[t].kind() == Item::Kind::Copy && dependencies_.before(t).empty();
  }

  // Where a task stands among those that are ready: leading ones first, then by position.
  using Place = std::tuple<bool, int, int>;

  void make_all_ready(const std::vector<int>& tasks) {
    for (int t : tasks) make_ready(t);
  }

  void make_ready(int t) {
    if (turns_.is_closed(t)) return turns_.keep(t);
    place_[t] = Place{!leads(t), tasks_[t].position, t};
    ready_.insert(*place_[t]);
    auto sends = [&](int p) { return is_collective(p); };
    if (std::ranges::any_of(dependencies_.before(t), sends)) may_wait_.insert(*place_[t]);
    look_again(t);
  }

  void look_again(int t) {
    if (!place_[t]) return;
    if (is_eager(t))
      eager_.insert(*place_[t]);
    else
      eager_.erase(*place_[t]);
  }

  bool is_collective(int t) const { return tasks_[t].kind() == Item::Kind::Collective; }

  // Tells whether t would wait for a collective on its way, which others can run beside.
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
    return change <= bytes_read(t) / kSmallBeside;
  }

  std::span<const Task> tasks_;
  const std::vector<VirtualBuffer>& buffers_;
  const Dependencies& dependencies_;
  std::vector<int> users_;                   // of a memory, that have not run
  std::vector<bool> begun_;                  // memories that hold something
  std::vector<bool> travels_;                // buffers that a collective sends
  std::vector<int64_t> sent_;                // by a collective and all before it, in bytes
  int64_t sent_so_far_ = 0, done_ = 0;       // by all; by those that somebody has waited for
  std::vector<std::vector<int>> touched_;    // memories of a task
  std::vector<std::vector<int>> users_of_;   // tasks that touch a memory
  std::vector<std::optional<Place>> place_;  // of tasks that are ready
  Turns turns_;
  std::set<Place> ready_, eager_;
  std::set<Place> may_wait_;  // ready tasks that read what a collective brings
  std::vector<int> changed_;  // memories, by the task that ran last
};

}  // namespace

std::vector<int> execution_order(std::span<const Task> tasks,
                                 const std::vector<VirtualBuffer>& buffers,
                                 const Dependencies& dependencies) {
  return Order(tasks, buffers, dependencies).run();
}

}  // namespace tinyshard
