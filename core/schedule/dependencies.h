// Which task must run before which, with reachability, kept up to date while tasks merge.
//
// No table of reachability is kept: one for n tasks has n^2 entries, and each merge changes up to n
// rows. Instead every task has a place in some order that respects all edges. A way from a to b
// leads through places between theirs only, so few tasks are looked at; and a merge moves only
// tasks there (after Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic
// graphs", 2006).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/schedule/task.h"

namespace tinyshard {

class Dependencies {
 public:
  // An edge for each: producer to reader; readers and writer of a version to the writer of the
  // next.
  Dependencies(std::span<const Task> tasks, const std::vector<VirtualBuffer>& buffers);

  const std::vector<int>& after(int task) const { return next_[task]; }
  const std::vector<int>& before(int task) const { return previous_[task]; }
  bool reaches(int from, int to) const;
  // True when `a` before `b` holds by a way through a third task.
  bool detour(int a, int b) const;
  // Task `from` becomes part of `into`. There must be no way between them through a third task.
  void merge(int from, int into);

  // Tasks in an order that respects every edge; among those that are ready, the lowest position.
  // InternalError when tasks wait for each other in a circle.
  std::vector<int> order(std::span<const Task> tasks) const;

  // Tasks that wait for each other in a circle, or for such tasks: a value is read together with
  // the one that overwrites it. Nothing else may be asked of this object then.
  const std::vector<int>& stuck() const { return stuck_; }

 private:
  void connect(int from, int to);
  std::vector<int> sorted(std::span<const Task> tasks) const;  // without the tasks in circles
  void begin_search() const;
  bool first_visit(int task) const;
  void give_places(int from, int into);

  std::vector<std::vector<int>> next_, previous_;
  std::vector<int> place_;  // of each task; those of an edge's ends ascend
  // Of the search at hand: tasks that it has seen have its number in seen_.
  mutable std::vector<uint32_t> seen_;
  mutable uint32_t search_ = 0;
  mutable std::vector<int> todo_;
  std::vector<int> stuck_;
};

}  // namespace tinyshard
