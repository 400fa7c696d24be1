#include "core/schedule/turns.h"

#include <algorithm>
#include <map>

namespace tinyshard {

Turns::Turns(std::span<const Task> tasks, const Dependencies& dependencies)
    : tasks_(tasks), dependencies_(dependencies), turn_(tasks.size(), -1) {
  std::map<int64_t, int> places;  // of turns, by their numbers
  auto gathers = [&](int t) { return tasks[size_t(t)].turn != 0 && !tasks[size_t(t)].gone; };
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (gathers(t)) places[tasks[size_t(t)].turn] = 0;
  }
  if (places.empty()) return;
  int count = 0;
  for (auto& [number, place] : places) place = count++;
  turns_.resize(places.size());
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (!gathers(t)) continue;
    const int place = places.at(tasks[size_t(t)].turn);
    turn_[size_t(t)] = place;
    Turn& turn = turns_[size_t(place)];
    turn.prefetch = std::max(turn.prefetch, size_t(tasks[size_t(t)].prefetch));
  }
  // What does nothing but prepare a gather, and waits for nothing, comes with it.
  for (int t = 0; t < int(tasks.size()); ++t) {
    const std::vector<int>& after = dependencies.after(t);
    if (tasks[size_t(t)].gone || gathers(t) || after.empty() || !dependencies.before(t).empty() ||
        !std::ranges::all_of(after, gathers))
      continue;
    int first = int(turns_.size());
    for (int gather : after) first = std::min(first, turn_[size_t(gather)]);
    turn_[size_t(t)] = first;
  }
}

void Turns::open(size_t turn, std::vector<int>& kept) {
  Turn& t = turns_[turn];
  t.open = true;
  kept.insert(kept.end(), t.kept.begin(), t.kept.end());
  t.kept.clear();
  while (next_ < turns_.size() && turns_[next_].open) ++next_;
}

std::vector<int> Turns::opened_by(int task) {
  std::vector<int> kept;
  if (turns_.empty()) return kept;
  for (int gather : dependencies_.before(task)) {
    if (tasks_[size_t(gather)].turn == 0 || turn_[size_t(task)] >= 0) continue;
    const auto begun = size_t(turn_[size_t(gather)]);
    if (turns_[begun].begun) continue;
    turns_[begun].begun = true;
    for (size_t i = begun + 1; i < turns_.size(); ++i) {
      if (!turns_[i].open && i <= begun + turns_[i].prefetch) open(i, kept);
    }
  }
  return kept;
}

std::vector<int> Turns::open_next() {
  std::vector<int> kept;
  open(next_, kept);
  return kept;
}

}  // namespace tinyshard
