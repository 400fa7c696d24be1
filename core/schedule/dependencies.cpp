#include "core/schedule/dependencies.h"

#include <algorithm>
#include <queue>

#include "core/base/error.h"

namespace tinyshard {
namespace {

void add_once(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

}  // namespace

Dependencies::Dependencies(std::span<const Task> tasks, const std::vector<VirtualBuffer>& buffers)
    : next_(tasks.size()),
      previous_(tasks.size()),
      reach_(tasks.size(), std::vector<uint64_t>((tasks.size() + 63) / 64)) {
  std::vector<int> writer(buffers.size(), -1);
  std::vector<std::vector<int>> readers(buffers.size());
  for (int t = 0; t < int(tasks.size()); ++t) {
    for (int b : tasks[t].writes) writer[b] = t;
    // Who reads a value by another name keeps what it lies in from being overwritten.
    for (int b : tasks[t].reads) {
      for (; b >= 0; b = buffers[b].container) readers[b].push_back(t);
    }
  }
  for (int b = 0; b < int(buffers.size()); ++b) {
    if (writer[b] >= 0) {
      for (int r : readers[b]) connect(writer[b], r);
    }
    int old = buffers[b].previous;
    if (old < 0 || writer[b] < 0) continue;
    for (int r : readers[old]) connect(r, writer[b]);
    if (writer[old] >= 0) connect(writer[old], writer[b]);
  }
  std::vector<int> in_order = sorted(tasks);
  std::vector<bool> free(tasks.size());
  for (int t : in_order) free[t] = true;
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (!free[t] && !tasks[t].gone) stuck_.push_back(t);
  }
  for (size_t i = in_order.size(); i-- > 0;) {
    int t = in_order[i];
    for (int n : next_[t]) {
      reach_[t][n >> 6] |= uint64_t{1} << (n & 63);
      for (size_t w = 0; w < reach_[t].size(); ++w) reach_[t][w] |= reach_[n][w];
    }
  }
}

void Dependencies::connect(int from, int to) {
  if (from == to) return;
  add_once(next_[from], to);
  add_once(previous_[to], from);
}

bool Dependencies::detour(int a, int b) const {
  return std::ranges::any_of(next_[a], [&](int x) { return x != b && reaches(x, b); });
}

void Dependencies::merge(int from, int into) {
  auto rename = [&](std::vector<int>& list) {
    std::erase(list, from);
    add_once(list, into);
  };
  for (int n : next_[from]) {
    if (n == into) continue;
    rename(previous_[n]);
    add_once(next_[into], n);
  }
  for (int p : previous_[from]) {
    if (p == into) continue;
    rename(next_[p]);
    add_once(previous_[into], p);
  }
  std::erase(next_[into], from);
  std::erase(previous_[into], from);
  next_[from].clear();
  previous_[from].clear();
  auto& merged = reach_[into];
  for (size_t w = 0; w < merged.size(); ++w) merged[w] |= reach_[from][w];
  merged[into >> 6] &= ~(uint64_t{1} << (into & 63));
  for (size_t t = 0; t < reach_.size(); ++t) {
    if (int(t) == into || !(reaches(int(t), from) || reaches(int(t), into))) continue;
    reach_[t][into >> 6] |= uint64_t{1} << (into & 63);
    for (size_t w = 0; w < merged.size(); ++w) reach_[t][w] |= merged[w];
  }
}

std::vector<int> Dependencies::order(std::span<const Task> tasks) const {
  std::vector<int> result = sorted(tasks);
  size_t wanted = size_t(std::ranges::count_if(tasks, [](const Task& t) { return !t.gone; }));
  check_internal(result.size() == wanted,
                 "items of a schedule do not wait for each other in a circle");
  return result;
}

std::vector<int> Dependencies::sorted(std::span<const Task> tasks) const {
  // Copies that wait for nothing lead: they bring what comes from elsewhere, and what follows them
  // can be recorded (core/exec/replay.h).
  auto leads = [&](int t) {
    return tasks[t].item.kind == Item::Kind::Copy && previous_[t].empty();
  };
  auto later = [&](int a, int b) {
    if (leads(a) != leads(b)) return leads(b);
    return tasks[a].position != tasks[b].position ? tasks[a].position > tasks[b].position : a > b;
  };
  std::priority_queue<int, std::vector<int>, decltype(later)> ready(later);
  std::vector<size_t> missing(tasks.size());
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (tasks[t].gone) continue;
    missing[t] = previous_[t].size();
    if (missing[t] == 0) ready.push(t);
  }
  std::vector<int> result;
  while (!ready.empty()) {
    int t = ready.top();
    ready.pop();
    result.push_back(t);
    for (int n : next_[t]) {
      if (--missing[n] == 0) ready.push(n);
    }
  }
  return result;
}

}  // namespace tinyshard
