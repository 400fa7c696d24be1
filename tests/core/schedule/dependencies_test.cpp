// Reachability while tasks merge, against a search of the whole graph.
#include "core/schedule/dependencies.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/schedule/memory.h"

namespace tinyshard::dependencies_test {
namespace {

// Task t writes buffer t and reads those of earlier tasks in `order`.
struct Random {
  Random(uint32_t seed, int n) : random(seed), tasks(size_t(n)), buffers(size_t(n)) {
    std::vector<int> order(static_cast<size_t>(n));
    for (int t = 0; t < n; ++t) order[size_t(t)] = t;
    std::ranges::shuffle(order, random);
    for (int i = 0; i < n; ++i) {
      Task& task = tasks[size_t(order[size_t(i)])];
      task.position = int(random() % 50);
      task.writes = {order[size_t(i)]};
      for (int reads = int(random() % 3); i > 0 && reads > 0; --reads)
        task.reads.push_back(order[random() % size_t(i)]);
    }
  }
  std::mt19937 random;
  std::vector<Task> tasks;
  std::vector<VirtualBuffer> buffers;
};

// Returns whether there is a way; with `through`, one that has a task between.
bool way(const Dependencies& d, int from, int to, bool through) {
  std::vector<int> todo;
  for (int n : d.after(from)) {
    if (n == to && !through) return true;
    if (n != to) todo.push_back(n);
  }
  std::vector<int> seen;
  while (!todo.empty()) {
    int t = todo.back();
    todo.pop_back();
    if (t == to) return true;
    if (std::ranges::find(seen, t) != seen.end()) continue;
    seen.push_back(t);
    for (int n : d.after(t)) todo.push_back(n);
  }
  return false;
}

TEST(Dependencies, KnowWaysThroughWhatWasMerged) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const int n = 4 + int(seed % 40);
    Random graph(seed, n);
    Dependencies d(graph.tasks, graph.buffers);
    std::vector<int> left;
    for (int t = 0; t < n; ++t) left.push_back(t);
    while (left.size() > 1) {
      for (int a : left) {
        for (int b : left) {
          ASSERT_EQ(d.reaches(a, b), a != b && way(d, a, b, false)) << seed;
          if (a != b) {
            ASSERT_EQ(d.detour(a, b), way(d, a, b, true)) << seed;
          }
        }
      }
      // Two tasks without a way through a third one, in either direction.
      std::vector<std::pair<int, int>> pairs;
      for (int a : left) {
        for (int b : left) {
          if (a != b && !d.detour(a, b) && !d.detour(b, a)) pairs.emplace_back(a, b);
        }
      }
      ASSERT_FALSE(pairs.empty());
      auto [from, into] = pairs[graph.random() % pairs.size()];
      d.merge(from, into);
      std::erase(left, from);
      graph.tasks[size_t(from)] = Task();
      graph.tasks[size_t(from)].gone = true;
      std::vector<int> order = d.order(graph.tasks);
      ASSERT_EQ(order.size(), left.size());
      for (size_t i = 0; i < order.size(); ++i) {
        for (size_t k = 0; k < i; ++k) ASSERT_FALSE(d.reaches(order[i], order[k]));
      }
    }
  }
}

TEST(Dependencies, NameTheTasksInACircle) {
  // Task 2 writes over what task 0 has made; task 1 reads both.
  std::vector<VirtualBuffer> buffers(3);
  buffers[2].previous = 0;
  std::vector<Task> tasks(3);
  tasks[0].writes = {0};
  tasks[1].reads = {0, 2};
  tasks[1].writes = {1};
  tasks[2].reads = {0};
  tasks[2].writes = {2};
  EXPECT_EQ(Dependencies(tasks, buffers).stuck(), (std::vector<int>{1, 2}));
}

TEST(Dependencies, TheEarliestVersionIsFoundThroughMany) {
  std::vector<VirtualBuffer> buffers(2000);
  for (int b = 1; b < 2000; ++b) buffers[size_t(b)].previous = b - 1;
  for (int b : {1999, 7, 1000, 1999}) EXPECT_EQ(earliest_version(buffers, b), 0);
  // The earliest version may become a version of another buffer itself.
  buffers.emplace_back();
  buffers[0].previous = 2000;
  for (int b : {1999, 7, 0, 2000}) EXPECT_EQ(memory_holder(buffers, b), 2000);
}

}  // namespace
}  // namespace tinyshard::dependencies_test
