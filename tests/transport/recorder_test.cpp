// Rings of ranks that are killed, stopped, late or diverged, and what `blame` says of them; and
// files that are no rings.
#include "transport/recorder/recorder.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/message_of.h"
#include "transport/recorder/blame.h"
#include "transport/recorder/ring_reader.h"

namespace tinyshard::test::recorder_test {
namespace {

using namespace recorder;
using test::message_of;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 3;
const std::vector<int> kAll = {0, 1, 2};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Collective reduction(size_t count) {
  return {.op = CollectiveOp::AllReduce,
          .dtype = DType::F32,
          .count = count,
          .ticket = {.epoch = 1, .schedule = 0xabc, .item = 2, .run = 7},
          .site = std::make_shared<const CollectiveSite>(
              CollectiveSite{"data", "gradient of w", "train.cpp:21"})};
}

class Rings : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("rings." + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override {
    for (pid_t pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  // A rank in a process of its own, which records `done` calls, starts one more of `last` elements
  // (0: none), and then computes for ever.
  pid_t start_rank(int rank, int done, size_t last, const std::string& says = {},
                   const std::string& job = "test") {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto ring =
          Recorder::open(folder_, {.rank = rank, .ranks = kRanks, .job = job, .epoch = 0});
      const auto group = ring->name_group(1, "world", kAll);
      for (int call = 0; call < done; ++call) {
        const uint64_t serial = ring->start(reduction(64), group, uint64_t(call), Clock::now());
        ring->complete(serial, Clock::now());
      }
      if (last != 0) ring->start(reduction(last), group, uint64_t(done), Clock::now());
      if (!says.empty()) ring->fail(1, FailureCause::Gone, says);
      if (write(ends[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    children_.push_back(pid);
    return pid;
  }

  Verdict verdict() const {
    const JobRings found = read_rings(folder_);
    EXPECT_TRUE(found.problems.empty()) << found.problems[0];
    return blame(found.rings, now_ns());
  }

  void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    std::erase(children_, pid);
  }

  // Returns the rings of a rank: its number stands behind "ring-".
  std::vector<std::filesystem::path> rings_of(int rank) const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename().string().starts_with("ring-" + std::to_string(rank) + "."))
        found.push_back(entry.path());
    }
    return found;
  }

  std::filesystem::path folder_;
  std::vector<pid_t> children_;
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST_F(Rings, AKilledRankIsGone) {
  start_rank(0, 5, 64);
  const pid_t victim = start_rank(1, 5, 0);
  start_rank(2, 5, 64);
  end(victim);
  const Verdict v = verdict();
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.cause, FailureCause::Gone);
  expect_contains(v.sentence, "rank 1 (process " + std::to_string(victim) + " on ");
  expect_contains(v.sentence,
                  "is gone: its process ended without a word after all_reduce sum f32 "
                  "x 64 on mesh axis \"data\" (call 4 of group \"world\"; gradient of w "
                  "(train.cpp:21), in run 7 of schedule abc)");
  expect_contains(v.sentence,
                  "; ranks 0, 2 wait for it in all_reduce sum f32 x 64 on mesh axis "
                  "\"data\" (call 5 of group \"world\"");
}

// The survivors were killed, too, later: what they said counts.
TEST_F(Rings, WhomTheSurvivorsBlamedIsGoneWhenAllAre) {
  const pid_t a = start_rank(0, 5, 64, "has ended"), b = start_rank(1, 5, 64),
              c = start_rank(2, 5, 64, "has ended");
  for (pid_t pid : {b, a, c}) end(pid);
  const Verdict v = verdict();
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.cause, FailureCause::Gone);
  expect_contains(v.sentence, "ended without a word in all_reduce");
}

TEST_F(Rings, AStoppedRankIsStopped) {
  start_rank(0, 5, 64);
  const pid_t victim = start_rank(1, 5, 0);
  start_rank(2, 5, 64);
  kill(victim, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(50));
  const Verdict v = verdict();
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.cause, FailureCause::Stopped);
  expect_contains(v.sentence, "is stopped, after all_reduce");
}

TEST_F(Rings, ALateRankIsLate) {
  start_rank(0, 5, 64);
  start_rank(1, 5, 0);
  start_rank(2, 5, 64);
  const Verdict v = verdict();
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.cause, FailureCause::Late);
  expect_contains(v.sentence, "is late, after all_reduce");
  const JobRings found = read_rings(folder_);
  const std::string list = what_ranks_do(found.rings, now_ns());
  expect_contains(list, "in all_reduce sum f32 x 64 on mesh axis \"data\" (call 5");
  expect_contains(list, "computes for ");
}

TEST_F(Rings, ADivergedRankIsNamedWithBothCalls) {
  start_rank(0, 5, 64);
  start_rank(1, 5, 64);
  start_rank(2, 5, 65);
  const Verdict v = verdict();
  EXPECT_EQ(v.culprit, 2);
  EXPECT_EQ(v.cause, FailureCause::Diverged);
  expect_contains(v.sentence, "diverged: it runs all_reduce sum f32 x 65 ");
  expect_contains(v.sentence, ", ranks 0, 1 run all_reduce sum f32 x 64 ");
}

// A former job had the same name, size and folder. Its rank 1 was killed; that of the job that is
// asked for has come no further than to its first call.
TEST_F(Rings, ThoseOfAFormerJobAreNone) {
  end(start_rank(1, 5, 0));
  const std::filesystem::path path = rings_of(1).at(0);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  recorder::Origin origin;
  file.read(reinterpret_cast<char*>(&origin), sizeof(origin));
  origin.wall_ns -= 3600'000'000'000;
  origin.check = check_of(&origin, &origin.check);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(&origin), sizeof(origin));
  file.close();
  start_rank(0, 5, 64);
  start_rank(2, 5, 64);
  const JobRings found = read_rings(folder_);
  ASSERT_EQ(found.rings.size(), 2u);
  EXPECT_EQ(found.rings[0].rank(), 0);
  EXPECT_EQ(found.rings[1].rank(), 2);
  expect_contains(verdict().sentence, "rank 1 left no ring here");
}

// Two jobs whose rings lie in one folder: rank 1 of the first is killed, all goes well with the other.
TEST_F(Rings, JobsThatRunAtOnceReplaceNoneOfEachOther) {
  std::vector<pid_t> first;
  for (int rank : kAll) first.push_back(start_rank(rank, 5, rank == 1 ? 0 : 64, {}, "first"));
  for (int rank : kAll) start_rank(rank, 5, 0, {}, "second");
  end(first[1]);
  for (int rank : kAll) EXPECT_EQ(rings_of(rank).size(), 2u);
  EXPECT_EQ(blame(read_rings(folder_, "first").rings, now_ns()).culprit, 1);
  EXPECT_EQ(blame(read_rings(folder_, "second").rings, now_ns()).culprit, -1);
  EXPECT_TRUE(read_rings(folder_, "third").rings.empty());
  const auto jobs = read_jobs(folder_);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_STREQ(jobs[0].origin().job.data(), "second");
  EXPECT_EQ(jobs[1].rings.size(), 3u);
  EXPECT_TRUE(jobs[0].runs() && jobs[1].runs());
}

// Rings go where their job ended a minute ago, or another process has the rank's number by now; those of
// a job that runs, or has just ended, stay.
TEST_F(Rings, StaleOnesAreRemoved) {
  end(start_rank(0, 5, 0, {}, "old"));
  start_rank(1, 5, 0, {}, "runs");
  for (int rank : {0, 1})
    std::filesystem::last_write_time(
        rings_of(rank).at(0),
        std::filesystem::file_time_type::clock::now() - std::chrono::minutes(2));
  end(start_rank(2, 5, 0, {}, "just ended"));
  EXPECT_TRUE(rings_of(0).empty());
  end(start_rank(0, 5, 0));
  start_rank(0, 5, 0);
  EXPECT_EQ(rings_of(0).size(), 1u);
  EXPECT_EQ(rings_of(1).size(), 1u);
  EXPECT_EQ(rings_of(2).size(), 1u);
}

TEST_F(Rings, NobodyIsToBlameWhereAllGoOn) {
  for (int rank : kAll) start_rank(rank, 5, 0);
  EXPECT_EQ(verdict().culprit, -1);
}

// Rank 1 of three is killed, the other two go on as 0 and 1, and then with a newcomer in its place.
TEST_F(Rings, EachFormationOfAJobIsTold) {
  const auto write = [&](int rank, int ranks, uint32_t epoch, int launched, int culprit = -1) {
    const auto ring = Recorder::open(
        folder_,
        {.rank = rank, .ranks = ranks, .job = "test", .epoch = epoch, .launched = launched});
    const std::vector<int> members(kAll.begin(), kAll.begin() + std::min(ranks, kRanks));
    const auto group = ring->name_group(1, "world", members);
    ring->complete(ring->start(reduction(64), group, 0, Clock::now()), Clock::now());
    if (culprit >= 0) ring->fail(culprit, FailureCause::Gone, "has ended");
  };
  constexpr uint32_t kNext = 1 << 16;
  write(3, 4, 2 * kNext + 5, 3, 2);  // of another start of the job
  const pid_t victim = start_rank(1, 1, 0);
  write(0, 3, 0, 0, 1);
  write(2, 3, 0, 2, 1);
  end(victim);
  write(0, 2, kNext, 0);
  write(1, 2, kNext, 2);
  write(0, 3, 2 * kNext, 0, 1);
  write(1, 3, 2 * kNext, 2);
  write(2, 3, 2 * kNext, 3, 1);
  const JobRings job = read_rings(folder_);
  EXPECT_TRUE(job.problems.empty()) << job.problems[0];
  const std::string text = tell(job, now_ns());
  ASSERT_EQ(job.earlier.size(), 2u) << text;
  EXPECT_EQ(job.rings.size(), 3u) << text;
  expect_contains(text, "formation 0 of ranks 0, 1, 2: rank 1 (process " + std::to_string(victim));
  expect_contains(text, " is gone: its process ended without a word after all_reduce");
  expect_contains(text, "\nformation 1 of ranks 0, 2: it ended so that others could join\n");
  expect_contains(text, "\nformation 2 of ranks 0, 2, 3: rank 1, launched as 2, (process ");
}

TEST_F(Rings, ARingHoldsTheLatestCalls) {
  start_rank(0, 10000, 64);
  const JobRings found = read_rings(folder_);
  ASSERT_EQ(found.rings.size(), 1u);
  const RankRing& ring = found.rings[0];
  EXPECT_EQ(ring.started, 10001u);
  ASSERT_EQ(ring.calls.size(), kCalls);
  EXPECT_EQ(ring.calls.front().sequence, 10001u - kCalls);
  EXPECT_TRUE(ring.calls.back().under_way());
  EXPECT_EQ(std::filesystem::file_size(rings_of(0).at(0)), kFileBytes);
}

// A ring that a test changes as it likes.
class RingFiles : public Rings {
 protected:
  void SetUp() override {
    Rings::SetUp();
    end(start_rank(0, 300, 64));
    path_ = rings_of(0).at(0);
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_EQ(bytes_.size(), kFileBytes);
  }
  std::string refusal(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return message_of<UserError>([&] { read_ring(path_); });
  }
  std::filesystem::path path_;
  std::string bytes_;
};

TEST_F(RingFiles, WhatIsNoRingIsRefusedWithASentence) {
  EXPECT_EQ(refusal("a text"), path_.string() + " is no ring of tinyshard");
  EXPECT_EQ(refusal(""), path_.string() + " is no ring of tinyshard");
  std::string other = bytes_;
  other[8] = 9;
  EXPECT_EQ(refusal(other),
            path_.string() + " is a ring of version 9, this program reads version 2");
  for (size_t length : {size_t{40}, kHeaderBytes, kFileBytes - 1}) {
    expect_contains(refusal(bytes_.substr(0, length)),
                    "is a damaged ring: it has " + std::to_string(length) + " bytes, a ring has " +
                        std::to_string(kFileBytes));
  }
  EXPECT_NO_THROW(refusal(bytes_));
}

// Each bit of the header's fixed part and of one call; what may change later is checked for range.
TEST_F(RingFiles, AFlippedBitIsFound) {
  const auto flipped = [&](size_t byte, int bit) {
    std::string changed = bytes_;
    changed[byte] = char(changed[byte] ^ (1 << bit));
    return changed;
  };
  for (size_t byte = 0; byte < sizeof(recorder::Origin); byte += 3)
    EXPECT_FALSE(refusal(flipped(byte, int(byte % 8))).empty()) << byte;
  const size_t call = kHeaderBytes + 100 * sizeof(CallRecord);
  for (size_t byte = call; byte < call + offsetof(CallRecord, completed_ns); byte += 3)
    expect_contains(refusal(flipped(byte, int(byte % 8))), "its call 101 is not as it was written");
}

TEST_F(RingFiles, AForeignFileDoesNotHideTheOthers) {
  std::ofstream(folder_ / "ring-1") << "a text";
  const JobRings found = read_rings(folder_);
  EXPECT_EQ(found.rings.size(), 1u);
  ASSERT_EQ(found.problems.size(), 1u);
  expect_contains(found.problems[0], "ring-1 is no ring of tinyshard");
}

TEST(RecorderCost, ARecordCostsNextToNothing) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / ("cost." + std::to_string(getpid()));
  const auto ring = Recorder::open(folder, {.rank = 0, .ranks = 1, .job = "cost", .epoch = 0});
  const auto group = ring->name_group(1, "world", std::vector<int>{0});
  const Collective call = reduction(64);
  const auto now = Clock::now();
  double best_ns = 1e9;
  for (int round = 0; round < 20; ++round) {
    constexpr int kEach = 5000;
    const auto begun = Clock::now();
    for (int i = 0; i < kEach; ++i) ring->complete(ring->start(call, group, uint64_t(i), now), now);
    best_ns = std::min(
        best_ns, std::chrono::duration<double, std::nano>(Clock::now() - begun).count() / kEach);
  }
  RecordProperty("nanoseconds", std::to_string(best_ns));
  std::cout << "a record, start and completion: " << best_ns << " ns\n";
  EXPECT_LT(best_ns, 2000);  // sanitizers; a release build takes some tens
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tinyshard::test::recorder_test
