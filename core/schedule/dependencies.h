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
#include <utility>
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
  // Both questions look from both ends by turns, an edge each, and end with the side that has no more:
  // a value that is read far away, or by very many, has few ways on one of them.
  bool reaches(int from, int to) const;
  // True when `a` before `b` holds by a way through a third task.
  bool detour(int a, int b) const;
  // Task `from` becomes part of `into`. There must be no way between them through a third task.
  void merge(int from, int into);

  // More edges, from first to second, none of them the last one of a circle. No task is merged later.
  void add(std::span<const std::pair<int, int>> edges, std::span<const Task> tasks);

  // Tasks in an order that respects every edge; among those that are ready, the lowest position.
  // InternalError when tasks wait for each other in a circle.
  std::vector<int> order(std::span<const Task> tasks) const;

  // Tasks that wait for each other in a circle, or for such tasks: a value is read together with
  // the one that overwrites it. Nothing else may be asked of this object then.
  const std::vector<int>& stuck() const { return stuck_; }

 private:
  using Edges = std::vector<std::vector<int>>;
  // A walk along edges, which meets each task once, an edge at a time. What it needs is kept for the
  // next one.
  class Search {
   public:
    explicit Search(size_t tasks) : seen_(tasks) {}
    void begin(int task);
    int next(const Edges& edges);   // where the next edge leads; -1 where there are no more
    int at() const { return at_; }  // where that edge begins
    bool add(int task);             // to those whose edges are walked; true for the first time
    bool has_seen(int task) const { return seen_[size_t(task)] == number_; }

   private:
    std::vector<uint32_t> seen_;  // the number of the last walk that saw the task
    uint32_t number_ = 0;
    std::vector<int> todo_;
    int at_ = 0;
    size_t edge_ = 0;
  };

  void connect(int from, int to);
  std::vector<int> sorted(std::span<const Task> tasks) const;  // without the tasks in circles
  void give_places(int from, int into);

  Edges next_, previous_;
  std::vector<int> place_;       // of each task; those of an edge's ends ascend
  mutable Search forth_, back_;  // along edges, and against them
  std::vector<int> stuck_;
};

}  // namespace tinyshard
