// The first task that writes to a storage waits for all collectives, and the others that write for it.
// Example: gradients g1 and g2 of weights w1 and w2,
//
//   all-reduce g1   all-reduce g2   w1 = w1 - g1   w2 = w2 - g2
//
// where the update of w1 could else come before the second sum, and be there alone if that fails.
#include "core/schedule/updates.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tinyshard {
namespace {

// Tells whether a task writes to memory that exists outside of the schedule and holds a value.
bool updates(const Task& task, const std::vector<VirtualBuffer>& buffers) {
  return !task.gone && !task.nothing && std::ranges::any_of(task.writes, [&](int b) {
    return buffers[size_t(first_version(buffers, b))].storage != nullptr;
  });
}

// Tells whether a way leads from one of these tasks to a collective.
bool collectives_follow(std::vector<int> todo, const ScheduleState& s) {
  std::vector<bool> seen(s.tasks.size());
  while (!todo.empty()) {
    const int t = todo.back();
    todo.pop_back();
    for (int next : s.dependencies->after(t)) {
      if (seen[size_t(next)]) continue;
      if (s.tasks[size_t(next)].kind() == Item::Kind::Collective) return true;
      seen[size_t(next)] = true;
      todo.push_back(next);
    }
  }
  return false;
}

}  // namespace

void update_at_once(ScheduleState& state) {
  if (!state.options.updates_at_once) return;
  std::vector<int> updating;
  for (int t : order_of_tasks(state)) {
    const Task& task = state.tasks[size_t(t)];
    if (!updates(task, state.schedule.buffers)) continue;
    if (task.kind() == Item::Kind::Collective) return;
    updating.push_back(t);
  }
  if (collectives_follow(updating, state)) return;
  state.schedule.updates_at_once = true;
  if (updating.empty()) return;
  std::vector<std::pair<int, int>> edges;
  const int first = updating.front();
  for (int t = 0; t < int(state.tasks.size()); ++t) {
    const Task& task = state.tasks[size_t(t)];
    if (!task.gone && task.kind() == Item::Kind::Collective) edges.emplace_back(t, first);
  }
  if (edges.empty()) return;
  for (int t : updating) {
    if (t != first) edges.emplace_back(first, t);
  }
  state.dependencies->add(edges, state.tasks);
}

}  // namespace tinyshard
