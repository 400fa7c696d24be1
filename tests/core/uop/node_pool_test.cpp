#include "core/uop/node_pool.h"

#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard {
namespace {

constexpr size_t kBytes = 96, kCells = 5000, kRounds = 20;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kPools = false;  // each cell is an allocation by itself
#else
constexpr bool kPools = true;
#endif

TEST(NodePools, CellsThatAnotherPoolWasGivenComeBack) {
  if (!kPools) GTEST_SKIP() << "the address sanitizer sees each cell by itself";
  FullCellLists full;
  NodePool builds(full), drops(full);
  std::set<void*> places;
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<void*> cells;
    for (size_t i = 0; i < kCells; ++i) cells.push_back(builds.take(kBytes));
    EXPECT_EQ(std::set(cells.begin(), cells.end()).size(), kCells) << "one cell was given twice";
    places.insert(cells.begin(), cells.end());
    for (void* cell : cells) drops.give(cell, kBytes);
  }
  // The pool that drops keeps a list, and a spare one.
  EXPECT_LE(places.size(), kCells + 2 * 1024);
}

TEST(NodePools, ThreadsThatEndLeaveTheirPools) {
  static auto& pools = *new NodePools;  // each test thread has its variables for this one
  std::set<void*> places;
  for (size_t round = 0; round < kRounds; ++round) {
    std::thread([&] {
      std::vector<void*> cells;
      for (size_t i = 0; i < kCells; ++i) cells.push_back(pools.take(kBytes));
      places.insert(cells.begin(), cells.end());
      for (void* cell : cells) pools.give(cell, kBytes);
    }).join();
  }
  if (kPools) {
    EXPECT_EQ(places.size(), kCells);
  }
}

}  // namespace
}  // namespace tinyshard
