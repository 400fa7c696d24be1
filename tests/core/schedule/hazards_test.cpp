// Steps wait for what they share memory with, and for nothing else.
#include "core/schedule/hazards.h"

#include <random>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "tests/sanitized.h"

namespace tinyshard::hazards_test {
namespace {

using Steps = std::vector<std::vector<Access>>;
using After = std::vector<std::vector<int>>;

Access read(int64_t begin, int64_t end, uint64_t memory = 0) { return {memory, begin, end, false}; }
Access write(int64_t begin, int64_t end, uint64_t memory = 0) { return {memory, begin, end, true}; }

TEST(Hazards, ReadersOfOneWriterRunSideBySide) {
  EXPECT_EQ(hazards(Steps{{write(0, 8)}, {read(0, 8), write(8, 16)}, {read(0, 8), write(16, 24)}}),
            (After{{}, {0}, {0}}));
}

TEST(Hazards, WhoOverwritesWaitsForReaders) {
  EXPECT_EQ(hazards(Steps{{write(0, 8)}, {read(0, 4)}, {read(4, 8)}, {write(2, 6)}}),
            (After{{}, {0}, {0}, {1, 2}}));
}

TEST(Hazards, BytesBesideEachOtherAreFree) {
  EXPECT_EQ(hazards(Steps{{write(0, 8)}, {write(8, 16)}, {read(0, 8)}, {read(7, 9)}}),
            (After{{}, {}, {0}, {0, 1}}));
}

TEST(Hazards, MemoriesAreApart) {
  EXPECT_EQ(hazards(Steps{{write(0, 8, 1)}, {write(0, 8, 2)}, {read(0, 8, 1), read(0, 8, 2)}}),
            (After{{}, {}, {0, 1}}));
}

TEST(Hazards, AStepMayReadWhatItWrites) {
  EXPECT_EQ(hazards(Steps{{write(0, 8)}, {read(0, 8), write(0, 8)}, {read(0, 8)}}),
            (After{{}, {0}, {1}}));
}

TEST(Hazards, WhatIsImpliedIsLeftOut) {
  EXPECT_EQ(
      hazards(Steps{{write(0, 8)}, {read(0, 8), write(8, 16)}, {read(0, 16)}, {write(0, 16)}}),
      (After{{}, {0}, {1}, {2}}));
}

// Against the definition: two steps are ordered if they touch a byte in common that one writes.
TEST(Hazards, RandomStepsAgreeWithEveryPair) {
  std::mt19937 random(3);
  auto pick = [&](int n) { return int64_t(random() % unsigned(n)); };
  for (int round = 0; round < 200; ++round) {
    Steps steps(20);
    for (auto& step : steps) {
      for (int64_t n = pick(4); n-- > 0;) {
        int64_t begin = pick(30);
        step.push_back({uint64_t(pick(2)), begin, begin + pick(8), pick(2) == 0});
      }
    }
    After after = hazards(steps);
    std::vector<std::vector<bool>> reached(20, std::vector<bool>(20)), wanted = reached;
    for (size_t s = 0; s < steps.size(); ++s) {
      for (size_t t = 0; t < s; ++t) {
        for (const Access& a : steps[s]) {
          for (const Access& b : steps[t]) {
            if (a.memory == b.memory && (a.written || b.written) && a.begin < b.end &&
                b.begin < a.end && a.begin < a.end && b.begin < b.end)
              wanted[s][t] = true;
          }
        }
      }
      for (size_t t = 0; t < s; ++t) {
        if (!wanted[s][t]) continue;
        for (size_t u = 0; u < t; ++u) {
          if (wanted[t][u]) wanted[s][u] = true;
        }
      }
      for (int t : after[s]) {
        reached[s][size_t(t)] = true;
        for (size_t u = 0; u < s; ++u) reached[s][u] = reached[s][u] || reached[size_t(t)][u];
      }
      for (int t : after[s]) {
        for (int u : after[s]) EXPECT_FALSE(reached[size_t(t)][size_t(u)]);
      }
    }
    EXPECT_EQ(reached, wanted) << "round " << round;
  }
}

// Each step of a long recording reads what the one before it wrote, and a value of the first one.
TEST(Hazards, OfManyStepsTakeMemoryByTheirNumber) {
  const auto most_memory = [] {  // KiB
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const int64_t count = 60000;
  Steps steps{{write(0, 8), write(8, 16)}};
  for (int64_t s = 1; s < count; ++s)
    steps.push_back({read(8 * s, 8 * s + 8), write(8 * s + 8, 8 * s + 16), read(0, 8)});
  const auto before = most_memory();
  const After after = hazards(steps);
  if (!test::kSanitized) {
    EXPECT_LT(most_memory() - before, 200 << 10) << "KiB: a bit for each pair takes 440 MiB";
  }
  EXPECT_EQ(after[1], std::vector<int>{0});
  EXPECT_EQ(after[5000], std::vector<int>{4999}) << "what is implied is left out";
  for (size_t s = 1; s < after.size(); ++s) {
    ASSERT_EQ(after[s].back(), int(s) - 1);
    ASSERT_TRUE(after[s].size() == 1 || (after[s].size() == 2 && after[s][0] == 0));
  }
}

// Two layers forward, two back, each with the gradient of a weight beside it; an update of all.
TEST(UrgentSteps, AreThoseOnTheLongestChain) {
  const After after{{}, {0}, {1}, {1}, {2}, {2}, {3, 4, 5}};
  EXPECT_EQ(urgent_steps(after), (std::vector<bool>{true, true, true, false, true, true, true}));
}

TEST(UrgentSteps, MayWaitForAnEighthOfTheLongestChain) {
  auto beside = [](int longest, int slack) {  // of a chain, one from its first step to its end
    After after{{}};
    for (int i = 1; i < longest; ++i) after.push_back({i - 1});
    after.push_back({0});
    for (int i = 0; i + slack + 2 < longest; ++i) after.push_back({int(after.size()) - 1});
    after.push_back({longest - 1, int(after.size()) - 1});
    return bool(urgent_steps(after)[size_t(longest)]);
  };
  EXPECT_TRUE(beside(15, 0));
  EXPECT_TRUE(beside(15, 2)) << "2 of 16";
  EXPECT_FALSE(beside(15, 3)) << "3 of 16";
  EXPECT_FALSE(beside(6, 1)) << "1 of 7";
}

TEST(UrgentSteps, AreNoneOfNone) { EXPECT_TRUE(urgent_steps({}).empty()); }

}  // namespace
}  // namespace tinyshard::hazards_test
