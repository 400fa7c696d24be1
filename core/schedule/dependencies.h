// Which task must run before which, with reachability, kept up to date while tasks merge.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/schedule/merge.h"

namespace tinyshard {

class Dependencies {
 public:
  // An edge for each: producer to reader; readers and writer of a version to the writer of the
  // next.
  Dependencies(std::span<const Task> tasks, const std::vector<VirtualBuffer>& buffers);

  const std::vector<int>& after(int task) const { return next_[task]; }
  const std::vector<int>& before(int task) const { return previous_[task]; }
  bool reaches(int from, int to) const { return reach_[from][to >> 6] >> (to & 63) & 1; }
  // True when `a` before `b` holds by a way through a third task.
  bool detour(int a, int b) const;
  // Task `from` becomes part of `into`.
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
  std::vector<std::vector<int>> next_, previous_;
  std::vector<std::vector<uint64_t>> reach_;
  std::vector<int> stuck_;
};

}  // namespace tinyshard
