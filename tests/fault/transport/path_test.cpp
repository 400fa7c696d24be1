// Ranks that do not do the same, though the sizes of their messages are: all learn of it at the
// first collective of the step, before its results are used, and the rank that left the path is
// named.
#include <regex>

#include <gtest/gtest.h>

#include "tests/fault/transport/job.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::test {
namespace {

Job start(int ranks, const std::string& scenario, int who) {
  static const test::TempFolder checkpoints;
  return {ranks, TINYSHARD_PATH_RANK, {scenario, std::to_string(who), checkpoints.path().native()}};
}

void expect_mention(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

TEST(Path, RanksThatDoTheSameGoOn) {
  Job job = start(3, "none", 1);
  EXPECT_EQ(job.finish(), 0) << job.output();
  EXPECT_TRUE(job.reports.empty()) << job.output();
}

// Batches that differ from rank to rank from the beginning are nobody's fault.
TEST(Path, BatchesOfEachRanksOwnGoOn) {
  Job job = start(3, "skip_own", -1);
  EXPECT_EQ(job.finish(), 0) << job.output();
  EXPECT_TRUE(job.reports.empty()) << job.output();
}

TEST(Path, AStepLeftOutIsFoundInIt) {
  for (const char* scenario : {"skip", "skip_placed", "skip_eager"}) {
    for (int who : {0, 1}) {
      SCOPED_TRACE(std::string(scenario) + " by " + std::to_string(who));
      Job job = start(3, scenario, who);
      EXPECT_EQ(job.finish(), 3) << job.output();
      for (int rank : {0, 1, 2}) {
        ASSERT_TRUE(job.reports.contains(rank)) << job.output();
        EXPECT_EQ(job.reports[rank].peer, who) << job.reports[rank].text;
        expect_mention(job.reports[rank].text, "rank " + std::to_string(who) +
                                                   " was given other values than ranks " +
                                                   (who == 0 ? "1, 2" : "0, 2"));
        for (int step : {9, 10}) {
          EXPECT_EQ(job.output().find(std::to_string(rank) + " step " + std::to_string(step)),
                    std::string::npos)
              << job.output();
        }
      }
    }
  }
}

TEST(Path, OfTwoRanksBothAreNamed) {
  Job job = start(2, "skip", 1);
  EXPECT_EQ(job.finish(), 3) << job.output();
  for (int rank : {0, 1}) {
    ASSERT_TRUE(job.reports.contains(rank)) << job.output();
    EXPECT_EQ(job.reports[rank].peer, 1 - rank) << job.reports[rank].text;
    expect_mention(job.reports[rank].text, "was given other values than rank");
  }
}

// The others save while that rank begins the next step: sizes differ, and whose message comes first
// says nothing.
TEST(Path, ARankThatLeftIsNamedWhereSizesDiffer) {
  for (int who : {0, 2}) {
    SCOPED_TRACE(who);
    Job job = start(4, "skip_own", who);
    EXPECT_EQ(job.finish(), 3) << job.output();
    for (int rank : {0, 1, 2, 3}) {
      ASSERT_TRUE(job.reports.contains(rank)) << job.output();
      if (rank != who) {
        EXPECT_EQ(job.reports[rank].peer, who) << job.reports[rank].text;
      }
      expect_mention(job.reports[rank].text,
                     "the ranks diverged: rank " + std::to_string(who) + " runs all_reduce");
    }
  }
}

TEST(Path, WhatDiffersInsideOfAKernelIsNamed) {
  Job job = start(3, "constant", 1);
  EXPECT_EQ(job.finish(), 3) << job.output();
  for (const char* rank : {"0", "1", "2"})
    expect_mention(job.output(), std::string(rank) + " user_error schedule of rank 0 and rank 1");
  expect_mention(job.output(), "differs inside");
  expect_mention(job.output(), "3.5\" on rank 0");
  expect_mention(job.output(), "2.5\" on rank 1");
}

TEST(Path, AnotherSeedIsTold) {
  Job job = start(3, "seed", 1);
  EXPECT_EQ(job.finish(), 3) << job.output();
  for (int rank : {0, 1, 2}) {
    ASSERT_TRUE(job.reports.contains(rank)) << job.output();
    EXPECT_EQ(job.reports[rank].peer, 1) << job.reports[rank].text;
    expect_mention(job.reports[rank].text,
                   "rank 1 was given other values than ranks 0, 2; rank 1: f32[8] of shard "
                   "(path_rank.cpp:");
  }
  EXPECT_EQ(job.output().find(" ready "), std::string::npos) << job.output();
}

// A read by a single rank is told by the lines of both, and not by what the library made of them.
TEST(Path, AReadOfOneRankAloneIsNamed) {
  for (int who : {0, 1}) {
    SCOPED_TRACE(who);
    Job job = start(2, "read", who);
    EXPECT_EQ(job.finish(), 3) << job.output();
    for (const char* rank : {"0", "1"}) expect_mention(job.output(), std::string(rank) + " step 8");
    // The other rank is in a comparison as well, or already in a collective of its step.
    const std::regex reader("rank " + std::to_string(who) +
                            R"((: | runs all_gather [^;]*; )item \(path_rank\.cpp:)");
    EXPECT_TRUE(std::regex_search(job.output(), reader)) << job.output();
    expect_mention(job.output(), "a value over ranks is computed by all of them together");
    EXPECT_EQ(job.output().find(" step 9"), std::string::npos) << job.output();
    EXPECT_EQ(job.output().find("copy_in"), std::string::npos) << job.output();
  }
}

class Replicas : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TS_CHECK", "replicas", 1); }
  void TearDown() override { unsetenv("TS_CHECK"); }
};

TEST_F(Replicas, ThatAreTheSameGoOn) {
  Job job = start(3, "none", 1);
  EXPECT_EQ(job.finish(), 0) << job.output();
}

TEST_F(Replicas, OfAnotherSeedAreNamedWhenTheyAreMade) {
  Job job = start(3, "seed", 1);
  EXPECT_EQ(job.finish(), 3) << job.output();
  for (const char* rank : {"0", "1", "2"})
    expect_mention(job.output(),
                   std::string(rank) +
                       " user_error replicas differ: value 1 of 1 that the run wrote, f32[8] on ");
  expect_mention(job.output(),
                 "is another value on rank 1 (CPU:0@1) than on rank 0 (CPU:0@0), rank 2 (CPU:0@2): "
                 "from element [0] on rank 1 (CPU:0@1) has 0.");
  EXPECT_EQ(job.output().find(" ready "), std::string::npos) << job.output();
}

TEST_F(Replicas, OneBitOfOneWeightIsFound) {
  Job job = start(2, "drift", 1);
  EXPECT_EQ(job.finish(), 3) << job.output();
  for (const char* rank : {"0", "1"}) {
    expect_mention(job.output(), std::string(rank) + " step 9");
    expect_mention(job.output(), std::string(rank) + " user_error replicas differ");
    EXPECT_EQ(job.output().find(std::string(rank) + " step 10"), std::string::npos);
  }
  expect_mention(job.output(), "from element [5] on ");
}

TEST(Path, OneBitOfOneWeightFromTheHostIsTold) {
  Job job = start(2, "drift", 1);
  EXPECT_EQ(job.finish(), 3) << job.output();
  for (int rank : {0, 1}) {
    ASSERT_TRUE(job.reports.contains(rank)) << job.output();
    expect_mention(job.reports[rank].text, "was given other values than rank");
    expect_mention(job.reports[rank].text, "f32[8] of shard (path_rank.cpp:");
    EXPECT_EQ(job.output().find(std::to_string(rank) + " step 10"), std::string::npos);
  }
}

}  // namespace
}  // namespace tinyshard::test
