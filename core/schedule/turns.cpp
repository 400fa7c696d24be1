// Turns are numbered by their place, 0 first. Whose turn a task waits for is known beforehand (turn_);
// what it copies of a turn's gathers is no reading of them (copied_). While tasks run, the first one
// that reads a gather, or a copy of it, begins that turn, and as many turns after it open as their
// gathers ask to be ahead:
//
//   gathers of turns 0 1 2, prefetch 1      open at first: none; nothing else runs, so 0 opens
//   a task reads what 0 gathered            0 has begun: 1 opens
//   a task reads what 1 gathered            1 has begun: 2 opens
#include "core/schedule/turns.h"

#include <algorithm>
#include <map>

namespace tinyshard {

std::vector<int64_t> prepared_turns(std::span<const Task> tasks) {
  std::vector<int64_t> turns(tasks.size());
  std::map<int, int64_t> sent;  // by buffer that gathers read, their first turn; 0: others read it
  for (const Task& task : tasks) {
    if (task.gone || task.turn == 0) continue;
    for (int b : task.reads) {
      auto [known, is_new] = sent.try_emplace(b, task.turn);
      known->second = std::min(known->second, task.turn);
    }
  }
  if (sent.empty()) return turns;
  for (const Task& task : tasks) {
    if (task.gone || task.turn != 0) continue;
    for (int b : task.reads) {
      if (auto known = sent.find(b); known != sent.end()) known->second = 0;
    }
  }
  for (size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    if (task.gone || task.turn != 0 || task.writes.empty()) continue;
    int64_t first = 0;
    bool prepares = true;
    for (int b : task.writes) {
      auto known = sent.find(b);
      prepares &= known != sent.end() && known->second != 0;
      if (prepares) first = first == 0 ? known->second : std::min(first, known->second);
    }
    if (prepares) turns[t] = first;
  }
  return turns;
}

Turns::Turns(std::span<const Task> tasks, const Dependencies& dependencies)
    : tasks_(tasks),
      dependencies_(dependencies),
      turn_(tasks.size(), -1),
      copied_(tasks.size(), -1) {
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
  // A task that prepares a gather comes in the turn of the gather.
  const std::vector<int64_t> prepared = prepared_turns(tasks);
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (prepared[size_t(t)] != 0) turn_[size_t(t)] = places.at(prepared[size_t(t)]);
  }
  find_copies();
}

// Tasks that read what the gathers of one turn bring, and nothing else.
void Turns::find_copies() {
  for (int t = 0; t < int(tasks_.size()); ++t) {
    const Task& task = tasks_[size_t(t)];
    const std::vector<int>& before = dependencies_.before(t);
    if (task.gone || turn_[size_t(t)] >= 0 || before.empty()) continue;
    const int turn = turn_[size_t(before[0])];
    auto gathered = [&](int gather) {
      return tasks_[size_t(gather)].turn != 0 && turn_[size_t(gather)] == turn;
    };
    auto is_brought = [&](int buffer) {
      return std::ranges::any_of(before, [&](int gather) {
        return std::ranges::count(tasks_[size_t(gather)].writes, buffer) > 0;
      });
    };
    if (std::ranges::all_of(before, gathered) && std::ranges::all_of(task.reads, is_brought))
      copied_[size_t(t)] = turn;
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
  if (turns_.empty() || turn_[size_t(task)] >= 0 || copied_[size_t(task)] >= 0) return kept;
  for (int source : dependencies_.before(task)) {
    const int turn =
        tasks_[size_t(source)].turn != 0 ? turn_[size_t(source)] : copied_[size_t(source)];
    if (turn < 0) continue;
    const auto begun = size_t(turn);
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
