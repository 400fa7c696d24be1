// The order of places, when a (place 2) and b (place 6) become one task:
//
//   place   2  3  4  5  6        a -> c, d -> b; e depends on neither
//   task    a  c  e  d  b
//
// What a leads to (c) has to come after both, what leads to b (d) before: they and the merged task
// share the places 2, 3, 5 and 6, in the order d, ab, c; e stays where it is.
#include "core/schedule/dependencies.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "core/base/error.h"

namespace tinyshard {
namespace {

void add_once(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

// Leaves each task once in each list, where it is met first.
void keep_first(std::vector<std::vector<int>>& lists) {
  std::vector<size_t> latest(lists.size());  // list in which a task was met, counted from 1
  for (size_t i = 0; i < lists.size(); ++i) {
    std::erase_if(lists[i],
                  [&](int t) { return std::exchange(latest[size_t(t)], i + 1) == i + 1; });
  }
}

}  // namespace

Dependencies::Dependencies(std::span<const Task> tasks, const std::vector<VirtualBuffer>& buffers)
    : next_(tasks.size()),
      previous_(tasks.size()),
      place_(tasks.size()),
      forth_(tasks.size()),
      back_(tasks.size()) {
  std::vector<int> writer(buffers.size(), -1);
  std::vector<std::vector<int>> readers(buffers.size());
  for (int t = 0; t < int(tasks.size()); ++t) {
    for (int b : tasks[t].writes) writer[b] = t;
    // A task that reads a value by a further name also reads the buffer that contains it, which
    // must not be overwritten before.
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
  keep_first(next_);
  keep_first(previous_);
  std::vector<int> in_order = sorted(tasks);
  std::vector<bool> free(tasks.size());
  for (int t : in_order) free[t] = true;
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (!free[t] && !tasks[t].gone) stuck_.push_back(t);
  }
  for (size_t i = 0; i < in_order.size(); ++i) place_[size_t(in_order[i])] = int(i);
}

void Dependencies::add(std::span<const std::pair<int, int>> edges, std::span<const Task> tasks) {
  for (const auto& [from, to] : edges) connect(from, to);
  keep_first(next_);
  keep_first(previous_);
  const std::vector<int> in_order = order(tasks);
  for (size_t i = 0; i < in_order.size(); ++i) place_[size_t(in_order[i])] = int(i);
}

void Dependencies::connect(int from, int to) {
  if (from == to) return;
  next_[from].push_back(to);
  previous_[to].push_back(from);
}

void Dependencies::Search::begin(int task) {
  if (++number_ == 0) {
    std::ranges::fill(seen_, 0);
    number_ = 1;
  }
  todo_.clear();
  seen_[size_t(task)] = number_;
  at_ = task, edge_ = 0;
}

bool Dependencies::Search::add(int task) {
  if (has_seen(task)) return false;
  seen_[size_t(task)] = number_;
  todo_.push_back(task);
  return true;
}

int Dependencies::Search::next(const Edges& edges) {
  while (edge_ == edges[size_t(at_)].size()) {
    if (todo_.empty()) return -1;
    at_ = todo_.back(), edge_ = 0;
    todo_.pop_back();
  }
  return edges[size_t(at_)][edge_++];
}

bool Dependencies::reaches(int from, int to) const {
  const int first = place_[size_t(from)], last = place_[size_t(to)];
  if (first >= last) return false;
  forth_.begin(from), back_.begin(to);
  for (;;) {
    const int n = forth_.next(next_);
    if (n < 0) return false;
    if (back_.has_seen(n)) return true;
    if (place_[size_t(n)] < last) forth_.add(n);

    const int p = back_.next(previous_);
    if (p < 0) return false;
    if (forth_.has_seen(p)) return true;
    if (place_[size_t(p)] > first) back_.add(p);
  }
}

bool Dependencies::detour(int a, int b) const {
  const int first = place_[size_t(a)], last = place_[size_t(b)];
  forth_.begin(a), back_.begin(b);
  for (;;) {
    const int n = forth_.next(next_);
    if (n < 0) return false;
    const bool is_edge = forth_.at() == a && n == b;
    if (!is_edge && back_.has_seen(n)) return true;
    if (place_[size_t(n)] < last) forth_.add(n);

    const int p = back_.next(previous_);
    if (p < 0) return false;
    const bool is_same_edge = back_.at() == b && p == a;
    if (!is_same_edge && forth_.has_seen(p)) return true;
    if (place_[size_t(p)] > first) back_.add(p);
  }
}

void Dependencies::give_places(int from, int into) {
  auto place = [&](int t) { return place_[size_t(t)]; };
  auto [first, last] = std::minmax(from, into, [&](int a, int b) { return place(a) < place(b); });
  // Tasks between the two: those that depend on the first, and those that the last one depends on.
  auto between = [&](int start, const Edges& edges) {
    std::vector<int> found;
    forth_.begin(start);
    for (int n; (n = forth_.next(edges)) >= 0;) {
      if (place(n) > place(first) && place(n) < place(last) && forth_.add(n)) found.push_back(n);
    }
    std::ranges::sort(found, {}, place);
    return found;
  };
  const std::vector<int> after = between(first, next_), before = between(last, previous_);
  std::vector<int> places{place(first), place(last)};
  for (const auto* list : {&before, &after}) {
    for (int t : *list) places.push_back(place(t));
  }
  std::ranges::sort(places);
  for (size_t i = 0; i < before.size(); ++i) place_[size_t(before[i])] = places[i];
  place_[size_t(into)] = places[before.size()];
  for (size_t i = 0; i < after.size(); ++i)
    place_[size_t(after[i])] = places[before.size() + 2 + i];
}

void Dependencies::merge(int from, int into) {
  give_places(from, into);
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
  using Place = std::tuple<bool, int, int>;
  std::priority_queue<Place, std::vector<Place>, std::greater<>> ready;
  auto add = [&](int t) {
    const bool leads = tasks[t].kind() == Item::Kind::Copy && previous_[t].empty();
    ready.emplace(!leads, tasks[t].position, t);
  };
  std::vector<size_t> missing(tasks.size());
  for (int t = 0; t < int(tasks.size()); ++t) {
    if (tasks[t].gone) continue;
    missing[t] = previous_[t].size();
    if (missing[t] == 0) add(t);
  }
  std::vector<int> result;
  while (!ready.empty()) {
    const int t = std::get<2>(ready.top());
    ready.pop();
    result.push_back(t);
    for (int n : next_[t]) {
      if (--missing[n] == 0) add(n);
    }
  }
  return result;
}

}  // namespace tinyshard
