// Jobs of `tinyshard run --elastic` whose ranks are killed: those that are left agree on a smaller
// world and finish there (reform_rank.cpp has what they print).
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <sys/wait.h>

#include <gtest/gtest.h>

namespace tinyshard::test {
namespace {

struct Result {
  int status = -1;
  std::string text;
  std::multiset<std::string> lines;
  size_t count(const std::string& line) const { return lines.count(line); }
};

Result run_command(const std::string& command) {
  Result result;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  std::istringstream lines(result.text);
  for (std::string line; std::getline(lines, line);) result.lines.insert(line);
  return result;
}

Result run(const std::string& flags, const std::string& arguments,
           const std::string& program = TINYSHARD_REFORM_RANK) {
  return run_command(std::string(TINYSHARD_CLI) + " run --no-prefix --cores all --timeout 30 " +
                     flags + " -- " + program + " " + arguments + " 2>&1");
}

TEST(Reform, SurvivorsGoOnAsASmallerWorld) {
  const Result job = run("-n 4 --elastic 2", "2");
  EXPECT_EQ(job.status, 0) << job.text;
  for (const char* line : {"2 formed 2 of 4", "0 formed 0 of 3", "1 formed 1 of 3",
                           "3 formed 2 of 3", "0 done 30", "1 done 30", "3 done 30"})
    EXPECT_EQ(job.count(line), 1u) << line << "\n" << job.text;
  for (const char* line : {"0 blames 2", "1 blames 2", "3 blames 2"})
    EXPECT_EQ(job.count(line), 1u) << line << "\n" << job.text;
  EXPECT_NE(job.text.find("1 of 4 ranks were lost"), std::string::npos) << job.text;
}

TEST(Reform, BlameTellsOfEachFormation) {
  const std::string folder = ::testing::TempDir() + "tinyshard_reform_test_rings";
  run_command("rm -rf " + folder);
  const Result job = run("-n 3 --elastic 1 --log-dir " + folder, "1");
  EXPECT_EQ(job.status, 0) << job.text;
  const Result told = run_command(std::string(TINYSHARD_CLI) + " blame " + folder + " 2>&1");
  EXPECT_EQ(told.text.find("formation 0 of ranks 0, 1, 2: rank 1 (process "), 0u) << told.text;
  EXPECT_NE(told.text.find(" is gone: "), std::string::npos) << told.text;
  EXPECT_NE(told.text.find("\nformation 1 of ranks 0, 2: all 2 ranks ended well\n"),
            std::string::npos)
      << told.text;
  run_command("rm -rf " + folder);
}

TEST(Reform, OneAfterTheOtherTheFirstAmongThem) {
  const Result job = run("-n 4 --elastic 1", "0 3 1");
  EXPECT_EQ(job.status, 0) << job.text;
  for (const char* line : {"1 formed 0 of 3", "2 formed 1 of 3", "3 formed 2 of 3",
                           "1 formed 0 of 2", "2 formed 1 of 2", "2 formed 0 of 1", "2 done 10"})
    EXPECT_EQ(job.count(line), 1u) << line << "\n" << job.text;
  // The third victim is rank 0 of the second world's two.
  EXPECT_EQ(job.count("2 blames 0"), 2u) << job.text;
}

// Ranks that no launcher named meet in a folder, where a job before them lost another rank.
TEST(Reform, AFormerJobInAFolderIsForgotten) {
  const std::string folder = ::testing::TempDir() + "tinyshard_reform_test_store";
  run_command("rm -rf " + folder);
  const std::string program =
      "env TS_TIMEOUT=3 TS_JOB= TS_STORE=file:" + folder + " " + TINYSHARD_REFORM_RANK;
  for (const char* victim : {"1", "2", "0"}) {
    SCOPED_TRACE(victim);
    const Result job = run("-n 3 --elastic 2", victim, program);
    EXPECT_EQ(job.status, 0) << job.text;
    for (const char* rank : {"0", "1", "2"})
      EXPECT_EQ(job.count(rank + std::string(" done 20")), *rank == *victim ? 0u : 1u) << job.text;
  }
  run_command("rm -rf " + folder);
}

// A ring tells of failures, and is none.
TEST(Reform, WhereNoRingCanBeKeptTheJobGoesOn) {
  const Result job = run("-n 3 --elastic 2", "1",
                         std::string("env TS_RECORD=/proc/nowhere ") + TINYSHARD_REFORM_RANK);
  EXPECT_EQ(job.status, 0) << job.text;
  for (const char* line : {"0 done 20", "2 done 20"}) EXPECT_EQ(job.count(line), 1u) << job.text;
  const std::string told = "rank 0 keeps no ring: cannot create /proc/nowhere: ";
  const size_t first = job.text.find(told);
  ASSERT_NE(first, std::string::npos) << job.text;
  EXPECT_EQ(job.text.find(told, first + 1), std::string::npos) << "it is told twice\n" << job.text;
}

TEST(Reform, TooFewAreLeft) {
  const Result job = run("-n 2 --elastic 2", "1");
  EXPECT_EQ(job.status, 128 + 9) << job.text;
  EXPECT_NE(job.text.find("rank 1 (process "), std::string::npos) << job.text;
}

TEST(Reform, MoreRanksNeededThanThereAre) {
  const Result job = run("-n 2 --elastic 3", "1");
  EXPECT_NE(job.status, 0);
  EXPECT_NE(job.text.find("--elastic 3, but there are 2 ranks"), std::string::npos) << job.text;
  for (const std::string range : {"2:4", "0:2", "2:1", "1:", "1:2:2", ":2", "two"}) {
    const Result bad = run("-n 2 --elastic " + range, "1");
    EXPECT_NE(bad.status, 0) << range;
    EXPECT_NE(bad.text.find("--elastic " + range), std::string::npos) << bad.text;
  }
}

// Ends as a run through the same worlds does in which nobody dies: the line behind a rank's number.
std::string undisturbed_end(const std::string& words) {
  const Result result = run_command(std::string(TINYSHARD_ELASTIC_RANK) + " " + words + " 2>&1");
  EXPECT_EQ(result.status, 0) << result.text;
  const size_t at = result.text.find(" done ");
  EXPECT_NE(at, std::string::npos) << result.text;
  if (at == std::string::npos) return {};
  return result.text.substr(at, result.text.find('\n', at) - at);
}

// Ranks 0 and 2 have committed the state after step 5 when rank 3 dies, rank 1 has not, though the update
// is behind it. The state is whole on each: rank 1 gets that of the others, and nothing is done again.
TEST(Elastic, AStepThatOneHasNotCommittedIsGivenToIt) {
  const Result job = run("-n 4 --elastic 3", "behind 3:1 5:0", TINYSHARD_ELASTIC_RANK);
  EXPECT_EQ(job.status, 0) << job.text;
  const std::string line = undisturbed_end("schedule 4:6 3:94");
  for (const char* rank : {"0", "1", "2"}) EXPECT_EQ(job.count(rank + line), 1u) << job.text;
}

// Rank 1 has, of state that is divided, no more than step 4 to give: the others undo step 5, and all of them
// do it again, in the smaller world.
TEST(Elastic, AStepOfDividedStateThatOneHasNotIsNobodys) {
  const Result job = run("-n 4 --elastic 3", "divided behind 3:1 5:0", TINYSHARD_ELASTIC_RANK);
  EXPECT_EQ(job.status, 0) << job.text;
  const std::string line = undisturbed_end("divided schedule 4:5 3:95");
  for (const char* rank : {"0", "1", "2"}) EXPECT_EQ(job.count(rank + line), 1u) << job.text;
}

// Between an update and the word of all ranks that they have it: at any moment of a commit the others
// agree on that step or on the one before, and end with the bits of such a run.
TEST(Elastic, ADeathInACommitLeavesOneStep) {
  for (const std::string words : {"", "divided "}) {
    for (const int us : {0, 50, 150, 400}) {
      SCOPED_TRACE(words + std::to_string(us));
      const Result job =
          run("-n 4 --elastic 3", words + "at 2:0 7:" + std::to_string(us), TINYSHARD_ELASTIC_RANK);
      EXPECT_EQ(job.status, 0) << job.text;
      const size_t at = job.text.find("0 done ");
      ASSERT_NE(at, std::string::npos) << job.text;
      const std::string line = job.text.substr(at + 1, job.text.find('\n', at) - at - 1);
      const size_t worlds = line.find(" 4:");
      ASSERT_NE(worlds, std::string::npos) << job.text;
      EXPECT_EQ(undisturbed_end(words + "schedule" + line.substr(worlds)), line) << job.text;
      for (const char* rank : {"1", "3"}) EXPECT_EQ(job.count(rank + line), 1u) << job.text;
    }
  }
}

// Some find it gone and give up. The others, which it had reached before, wait for those no longer.
TEST(Elastic, ADeathAsDetectorsMeetCostsNoDeadline) {
  for (const int victim : {0, 1, 3}) {
    for (const int us : {0, 300, 1000}) {
      SCOPED_TRACE(std::to_string(victim) + " after " + std::to_string(us));
      const auto begun = std::chrono::steady_clock::now();
      const Result job =
          run("-n 4 --elastic 3", "meets " + std::to_string(victim) + ":0 0:" + std::to_string(us),
              TINYSHARD_ELASTIC_RANK);
      EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(12)) << job.text;
      EXPECT_EQ(job.status, 0) << job.text;
    }
  }
}

// Rank 2 dies, whose parts rank 3 has copies of; what was divided by four is divided by three.
TEST(Elastic, TheBoxesOfALostRankComeFromItsNeighbour) {
  const Result job = run("-n 4 --elastic 3", "divided 2:2000", TINYSHARD_ELASTIC_RANK);
  EXPECT_EQ(job.status, 0) << job.text;
  const size_t at = job.text.find("0 done ");
  ASSERT_NE(at, std::string::npos) << job.text;
  const std::string line = job.text.substr(at + 1, job.text.find('\n', at) - at - 1);
  const size_t worlds = line.find(" 4:");
  ASSERT_NE(worlds, std::string::npos) << job.text;
  EXPECT_NE(line.find(" 3:"), std::string::npos) << job.text;
  const Result undisturbed = run_command(std::string(TINYSHARD_ELASTIC_RANK) + " divided schedule" +
                                         line.substr(worlds) + " 2>&1");
  EXPECT_EQ(undisturbed.count("0" + line), 1u) << undisturbed.text << job.text;
  for (const char* rank : {"1", "3"}) EXPECT_EQ(job.count(rank + line), 1u) << job.text;
}

// Rank 4 is started in the place of rank 2, which dies; it has the state, whole or in parts, and takes
// part to the end.
TEST(Elastic, AnotherOneJoinsInThePlaceOfTheLost) {
  for (const std::string words : {"patient", "divided patient"}) {
    const Result job = run("-n 4 --elastic 3:4", words + " 2:20000", TINYSHARD_ELASTIC_RANK);
    EXPECT_EQ(job.status, 0) << job.text;
    const size_t at = job.text.find("0 done ");
    ASSERT_NE(at, std::string::npos) << job.text;
    const std::string line = job.text.substr(at + 1, job.text.find('\n', at) - at - 1);
    for (const char* rank : {"1", "3"}) EXPECT_EQ(job.count(rank + line), 1u) << job.text;
    const size_t worlds = line.find(" 4:");
    ASSERT_NE(worlds, std::string::npos) << job.text;
    // The same weights, from the step on at which it joined.
    const std::string joined = "4" + line.substr(0, worlds) + " joined:";
    EXPECT_NE(job.text.find(joined), std::string::npos) << joined << "\n" << job.text;
    EXPECT_EQ(job.text.find(joined + "0"), std::string::npos) << job.text;
    const Result undisturbed = run_command(std::string(TINYSHARD_ELASTIC_RANK) + " " + words +
                                           " schedule" + line.substr(worlds) + " 2>&1");
    EXPECT_EQ(undisturbed.count("0" + line), 1u) << undisturbed.text << job.text;
  }
}

// Both at once, before any has told the others: nobody has what rank 1 held.
TEST(Elastic, TwoNeighboursAreMissed) {
  const Result job = run("-n 4 --elastic 2", "divided both 1:2 5:0", TINYSHARD_ELASTIC_RANK);
  EXPECT_NE(job.status, 0) << job.text;
  EXPECT_NE(
      job.text.find("of the 4 ranks that committed step 5, rank 1, which held it, and rank 2, "
                    "which held its copy, are both gone; load the checkpoint"),
      std::string::npos)
      << job.text;
}

}  // namespace
}  // namespace tinyshard::test
