// The order of tasks against its rule, followed naively: before each task, all that are ready are
// looked at.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "core/schedule/execution_order.h"

namespace tinyshard::order_test {
namespace {

struct Graph {
  std::vector<Task> tasks;
  std::vector<VirtualBuffer> buffers;
};

std::unique_ptr<Item> item_of(Item::Kind kind) {
  auto item = std::make_unique<Item>();
  item->kind = kind;
  return item;
}

// Each task writes a buffer of its own and reads some of those before it. Some are collectives,
// some copies; some buffers are large, some go out, some lie in storages.
Graph random_graph(std::mt19937& random, int size) {
  auto below = [&](int n) { return int(random() % unsigned(n)); };
  Graph g;
  for (int t = 0; t < size; ++t) {
    VirtualBuffer b;
    b.shape = {int64_t{1} << below(26)};
    b.output = below(10) == 0;
    g.buffers.push_back(b);
    Task task;
    task.position = below(3) == 0 ? below(size) : t;
    task.writes = {t};
    std::set<int> reads;
    for (int i = below(4); i > 0 && t > 0; --i) reads.insert(std::max(0, t - 1 - below(30)));
    task.reads.assign(reads.begin(), reads.end());
    if (task.reads.size() == 1 && below(2) == 0) task.item = item_of(Item::Kind::Collective);
    if (task.reads.empty() && below(3) == 0) task.item = item_of(Item::Kind::Copy);
    g.tasks.push_back(std::move(task));
  }
  return g;
}

constexpr int64_t kMuch = 16, kFarBehind = int64_t{64} << 20;

std::vector<int> naive_order(const Graph& g, const Dependencies& dependencies) {
  const int n = int(g.tasks.size());
  auto collective = [&](int t) { return g.tasks[size_t(t)].kind() == Item::Kind::Collective; };
  auto leads = [&](int t) {
    return g.tasks[size_t(t)].kind() == Item::Kind::Copy && dependencies.before(t).empty();
  };
  std::vector<bool> ran(g.tasks.size()), sends(g.buffers.size()), begun(g.buffers.size());
  for (int t = 0; t < n; ++t) {
    for (int b : g.tasks[size_t(t)].reads) sends[size_t(b)] = sends[size_t(b)] || collective(t);
  }
  std::vector<int64_t> sent(g.tasks.size());
  int64_t all_sent = 0, done = 0;
  auto bytes_read = [&](int t) {
    int64_t bytes = 0;
    for (int b : g.tasks[size_t(t)].reads) bytes += g.buffers[size_t(b)].bytes();
    return bytes;
  };
  auto touches = [&](int t, int b) {
    const Task& task = g.tasks[size_t(t)];
    return std::ranges::count(task.reads, b) + std::ranges::count(task.writes, b) > 0;
  };
  auto eager = [&](int t) {
    if (leads(t) || collective(t)) return true;
    for (int p : dependencies.before(t)) {
      if (collective(p) && sent[size_t(p)] > done && all_sent - sent[size_t(p)] < kFarBehind)
        return false;
    }
    const Task& task = g.tasks[size_t(t)];
    if (std::ranges::all_of(task.writes, [&](int b) { return bool(sends[size_t(b)]); }))
      return true;
    int64_t change = 0;
    for (int b = 0; b < int(g.buffers.size()); ++b) {
      if (!touches(t, b) || g.buffers[size_t(b)].output) continue;
      int users = 0;
      for (int other = 0; other < n; ++other) users += !ran[size_t(other)] && touches(other, b);
      if (!begun[size_t(b)]) change += g.buffers[size_t(b)].bytes();
      if (users == 1) change -= g.buffers[size_t(b)].bytes();
    }
    return change <= bytes_read(t) / kMuch;
  };
  std::vector<int> order;
  while (int(order.size()) < n) {
    std::vector<int> ready;
    for (int t = 0; t < n; ++t) {
      auto is_done = [&](int p) { return bool(ran[size_t(p)]); };
      if (!ran[size_t(t)] && std::ranges::all_of(dependencies.before(t), is_done))
        ready.push_back(t);
    }
    std::ranges::sort(ready, {},
                      [&](int t) { return std::tuple(!leads(t), g.tasks[size_t(t)].position, t); });
    auto next = std::ranges::find_if(ready, eager);
    const int t = next == ready.end() ? ready.at(0) : *next;
    order.push_back(t);
    ran[size_t(t)] = true;
    for (int p : dependencies.before(t)) {
      if (collective(p)) done = std::max(done, sent[size_t(p)]);
    }
    if (collective(t)) sent[size_t(t)] = all_sent += bytes_read(t);
    for (int b = 0; b < int(g.buffers.size()); ++b)
      begun[size_t(b)] = begun[size_t(b)] || touches(t, b);
  }
  return order;
}

TEST(Order, IsThatOfItsRule) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    Graph g = random_graph(random, 5 + round);
    Dependencies dependencies(g.tasks, g.buffers);
    ASSERT_EQ(execution_order(g.tasks, g.buffers, dependencies), naive_order(g, dependencies))
        << "round " << round;
  }
}

}  // namespace
}  // namespace tinyshard::order_test
