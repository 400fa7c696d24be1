// Which rank `tinyshard doctor` names: the one that is slower than its neighbours, and none without any.
#include "cli/figures.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::cli {
namespace {

Figures with(std::string_view device, double memory, double sum_us) {
  Figures figures;
  device.copy(figures.device.data(), figures.device.size() - 1);
  figures.memory = memory;
  figures.small_sum_us = sum_us;
  return figures;
}

std::vector<std::string> odd(const std::vector<Figures>& all) {
  std::vector<std::string> names;
  for (size_t i = 0; i < all.size(); ++i) names.push_back("rank " + std::to_string(i) + " on node");
  return odd_ones(all, names);
}

TEST(OddOnes, TheSlowOneIsNamedWithItsFigure) {
  EXPECT_EQ(odd({with("CPU:0", 20, 10), with("CPU:0", 9, 11), with("CPU:0", 22, 9)}),
            std::vector<std::string>{
                "rank 1 on node, CPU:0: memory 9 GB/s, the median of such devices is 20"});
}

TEST(OddOnes, OfTwoTheSlowerIsNamed) {
  EXPECT_EQ(odd({with("CUDA:0", 900, 10), with("CUDA:1", 2000, 25)}),
            (std::vector<std::string>{
                "rank 0 on node, CUDA:0: memory 900 GB/s, the median of such devices is 2000",
                "rank 1 on node, CUDA:1: sum 8 KB 25 us, the median of such devices is 10"}));
}

TEST(OddOnes, OtherDevicesAreNoNeighbours) {
  EXPECT_TRUE(
      odd({with("CUDA:0", 2000, 10), with("CPU:0", 20, 10), with("CUDA:1", 1900, 12)}).empty());
}

TEST(OddOnes, WhatWasNotMeasuredIsNotSlow) {
  EXPECT_TRUE(odd({with("CPU:0", 20, 0), with("CPU:0", 0, 0)}).empty());
}

}  // namespace
}  // namespace tinyshard::cli
