// A job in which one rank is killed, stopped, ended or gives up. Survivors name the culprit in
// time; the job ends; nothing hangs. Built with TINYSHARD_FAULT_RANK, the program that plays the
// ranks, once for mpirun and once for our own launcher; TINYSHARD_RECOVERY is mpirun's flag that
// keeps it from ending the job itself.
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/fault/transport/job.h"

namespace tinyshard::test {
namespace {

std::vector<std::string> recovery() {
  const std::string flag = TINYSHARD_RECOVERY;
  return flag.empty() ? std::vector<std::string>() : std::vector<std::string>{flag};
}

// Returns whether the process is there and no zombie, which only waits to be asked for.
bool lives(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  file >> number >> name >> state;
  return !state.empty() && state != "Z" && state != "X";
}

double milliseconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

void expect_report(Job& job, int rank, int culprit, const std::string& mention,
                   Clock::time_point since, double within_ms) {
  ASSERT_TRUE(job.reports.contains(rank)) << "rank " << rank << " said nothing\n" << job.output();
  const Report& report = job.reports[rank];
  EXPECT_EQ(report.peer, culprit) << report.text;
  EXPECT_NE(report.text.find(mention), std::string::npos) << report.text;
  EXPECT_NE(report.text.find("rank " + std::to_string(rank) + ": all_reduce max f32"),
            std::string::npos)
      << report.text;
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const std::string who = "process " + std::to_string(job.pids[culprit]) + " on " + host;
  EXPECT_NE(report.text.find(who), std::string::npos) << who << ": " << report.text;
  EXPECT_LE(milliseconds_between(since, report.at), within_ms) << report.text;
  EXPECT_GE(report.again_ms, 0) << "the next call did not fail";
  EXPECT_LT(report.again_ms, 10) << "the next call failed late";
}

TEST(JobFault, AJobThatEndsWell) {
  Job job(3, TINYSHARD_FAULT_RANK, {"done", "30"});
  EXPECT_EQ(job.finish(), 0) << job.output();
  EXPECT_EQ(job.pids.size(), 3u);
}

TEST(JobFault, AKilledRankIsNamedBeforeTheLauncherEndsTheJob) {
  for (int victim : {0, 1, 2}) {
    Job job(3, TINYSHARD_FAULT_RANK, {"work", "30"});
    ASSERT_TRUE(job.read_ready(3)) << job.output();
    std::this_thread::sleep_for(milliseconds(20 + 7 * victim));
    const auto killed = Clock::now();
    kill(job.pids[victim], SIGKILL);
    const int status = job.finish();
    EXPECT_NE(status, 0) << job.output();
    EXPECT_NE(status, -1) << "hangs\n" << job.output();
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != victim) expect_report(job, rank, victim, "has ended", killed, 1000);
    }
    EXPECT_LT(milliseconds_between(killed, Clock::now()), 8000);
  }
}

// Nothing but the heartbeats tells: the rank that is waited for is well.
TEST(JobFault, AKilledRankIsNamedWhereTheWaitIsForAnotherOne) {
  Job job(3, TINYSHARD_FAULT_RANK, {"chain", "30"}, recovery());
  ASSERT_TRUE(job.read_ready(3)) << job.output();
  std::this_thread::sleep_for(milliseconds(200));
  const auto killed = Clock::now();
  kill(job.pids[2], SIGKILL);
  EXPECT_TRUE(job.read_until([&] { return job.reports.contains(0); })) << job.output();
  EXPECT_EQ(job.reports[0].peer, 2) << job.reports[0].text;
  EXPECT_NE(job.reports[0].text.find("has ended"), std::string::npos) << job.reports[0].text;
  EXPECT_LE(milliseconds_between(killed, job.reports[0].at), 1000) << job.reports[0].text;
}

// With its own recovery on, mpirun does not end the job: only the survivors' own news helps.
TEST(JobFault, AKilledRankIsNamedWithoutHelpFromTheLauncher) {
  Job job(3, TINYSHARD_FAULT_RANK, {"work", "30"}, recovery());
  ASSERT_TRUE(job.read_ready(3)) << job.output();
  std::this_thread::sleep_for(milliseconds(20));
  const auto killed = Clock::now();
  kill(job.pids[1], SIGKILL);
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
  expect_report(job, 0, 1, "has ended", killed, 1000);
  expect_report(job, 2, 1, "has ended", killed, 1000);
}

TEST(JobFault, AStoppedRankIsNamedAtTheDeadlineAndFindsItselfGivenUp) {
  Job job(3, TINYSHARD_FAULT_RANK, {"work", "1"});
  ASSERT_TRUE(job.read_ready(3)) << job.output();
  const auto stopped = Clock::now();
  kill(job.pids[1], SIGSTOP);
  ASSERT_TRUE(job.read_until([&] { return job.reports.size() == 2; })) << job.output();
  expect_report(job, 0, 1, "is stopped", stopped, 3000);
  expect_report(job, 2, 1, "", stopped, 3000);
  EXPECT_GE(milliseconds_between(stopped, job.reports[0].at), 900) << "before the deadline";
  kill(job.pids[1], SIGCONT);
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
  ASSERT_TRUE(job.reports.contains(1)) << job.output();
  EXPECT_NE(job.reports[1].text.find("gave up on this rank"), std::string::npos)
      << job.reports[1].text;
}

TEST(JobFault, AShortPauseIsNotAFailure) {
  Job job(2, TINYSHARD_FAULT_RANK, {"work", "5"});
  ASSERT_TRUE(job.read_ready(2)) << job.output();
  kill(job.pids[1], SIGSTOP);
  std::this_thread::sleep_for(milliseconds(500));
  kill(job.pids[1], SIGCONT);
  const auto quiet_until = Clock::now() + milliseconds(500);
  job.read_until([&] { return Clock::now() > quiet_until || !job.reports.empty(); });
  EXPECT_TRUE(job.reports.empty()) << job.output();
}

// The wish comes to a single rank; the others, of which one has stopped and hears nothing, learn of it from
// that rank or from the launcher, whoever is first.
TEST(JobFault, ARankThatIsToldToEndEndsTheWaitsOfAll) {
  Job job(3, TINYSHARD_FAULT_RANK, {"work", "30"});
  ASSERT_TRUE(job.read_ready(3)) << job.output();
  kill(job.pids[1], SIGSTOP);
  std::this_thread::sleep_for(milliseconds(100));
  const auto signalled = Clock::now();
  kill(job.pids[0], SIGTERM);
  ASSERT_TRUE(job.read_until([&] { return job.reports.size() >= 2; })) << job.output();
  for (const auto& [rank, report] : job.reports) {
    EXPECT_NE(report.text.find("the launcher is ending the job (SIGTERM)"), std::string::npos)
        << report.text;
    EXPECT_LE(milliseconds_between(signalled, report.at), 1000) << report.text;
  }
  kill(job.pids[1], SIGCONT);
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
}

TEST(JobFault, ARankThatThrowsOrAbortsTellsTheOthersWhy) {
  Job thrown(3, TINYSHARD_FAULT_RANK, {"throw", "30"});
  EXPECT_NE(thrown.finish(), -1) << thrown.output();
  expect_report(thrown, 0, 1, "destroyed by an exception", thrown.begun(), 10000);
  EXPECT_LT(thrown.reports[0].elapsed_ms, 1000);
  Job aborted(3, TINYSHARD_FAULT_RANK, {"abort", "30"});
  EXPECT_NE(aborted.finish(), -1) << aborted.output();
  for (int rank : {0, 2}) {
    expect_report(aborted, rank, 1, "rank 1 left: aborted: no such corpus", aborted.begun(), 10000);
    EXPECT_LT(aborted.reports[rank].elapsed_ms, 1000);
  }
}

TEST(JobFault, ARankThatExitsWithAnErrorIsNamed) {
  Job job(3, TINYSHARD_FAULT_RANK, {"exit_1", "30"});
  EXPECT_NE(job.finish(), -1) << job.output();
  expect_report(job, 0, 1, "has ended", job.begun(), 10000);
  EXPECT_LT(job.reports[0].elapsed_ms, 1000);
}

// Rank 1 is alive and waits for the others in its exit handler. They learn from its farewell that
// it has left.
TEST(JobFault, ARankThatLeavesTooEarlyIsNamedAtOnce) {
  for (const char* scenario : {"exit_0", "return"}) {
    SCOPED_TRACE(scenario);
    Job job(3, TINYSHARD_FAULT_RANK, {scenario, "30"});
    const int status = job.finish();
    EXPECT_NE(status, -1) << "hangs\n" << job.output();
    EXPECT_NE(status, 0) << job.output();
    for (int rank : {0, 2}) {
      expect_report(job, rank, 1, "rank 1 has left: its main returned", job.begun(), 10000);
      EXPECT_LT(job.reports[rank].elapsed_ms, 1000);
    }
  }
}

// Rank 1, which left first, waits until the other rank exits and says farewell. No launcher ends it
// before.
TEST(JobFault, ARankThatLeavesTooEarlyIsNotHeldWithoutHelpFromTheLauncher) {
  Job job(2, TINYSHARD_FAULT_RANK, {"exit_0", "30"}, recovery());
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
  expect_report(job, 0, 1, "rank 1 has left", job.begun(), 10000);
}

TEST(JobFault, ARankThatStillSavesAfterTheLastStepIsWaitedFor) {
  Job job(3, TINYSHARD_FAULT_RANK, {"save", "1"});  // longer than the deadline of a collective
  EXPECT_EQ(job.finish(), 0) << job.output();
  EXPECT_GT(milliseconds_between(job.begun(), Clock::now()), 3000);
  EXPECT_TRUE(job.reports.empty()) << job.output();
}

TEST(JobFault, ARankThatDoesNotJoinIsNamed) {
  Job job(3, TINYSHARD_FAULT_RANK, {"late", "1"});
  const int status = job.finish();
  EXPECT_NE(status, -1) << job.output();
  EXPECT_NE(status, 0) << job.output();
  for (int rank : {0, 2}) {
    ASSERT_TRUE(job.reports.contains(rank)) << job.output();
    const Report& report = job.reports[rank];
    EXPECT_EQ(report.peer, 1) << report.text;
    EXPECT_NE(report.text.find("the other ranks did not come; rank 1 (process " +
                               std::to_string(job.pids[1]) + ") runs, but has not come"),
              std::string::npos)
        << report.text;
    EXPECT_EQ(report.text.find("rank " + std::to_string(2 - rank) + " (process"), std::string::npos)
        << "an innocent rank is blamed: " << report.text;
    EXPECT_LT(report.elapsed_ms, 3000);
  }
}

TEST(JobFault, ARankThatIsStoppedOrKilledBeforeItJoinsIsNamed) {
  for (int signal : {SIGSTOP, SIGKILL}) {
    SCOPED_TRACE(signal);
    // A stopped one is given the time of a collective, a dead one is not.
    Job job(3, TINYSHARD_FAULT_RANK, {"late", signal == SIGSTOP ? "1" : "30"});
    ASSERT_TRUE(job.read_ready(1)) << job.output();
    std::this_thread::sleep_for(milliseconds(400));
    const auto begun = Clock::now();
    kill(job.pids[1], signal);
    EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
    for (int rank : {0, 2}) {
      ASSERT_TRUE(job.reports.contains(rank)) << job.output();
      const Report& report = job.reports[rank];
      EXPECT_EQ(report.peer, 1) << report.text;
      EXPECT_NE(report.text.find(signal == SIGSTOP ? ") is stopped" : "has ended"),
                std::string::npos)
          << report.text;
      EXPECT_LT(milliseconds_between(begun, report.at), signal == SIGSTOP ? 2500 : 1000);
    }
  }
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// A program that ends by tell_failure: who is told of what, before mpirun ends all.
TEST(TellFailure, TheDeathOfAnyRankIsTold) {
  for (int victim : {0, 1, 2}) {
    SCOPED_TRACE(victim);
    Job job(3, TINYSHARD_FAULT_RANK, {"tell", "30"});
    ASSERT_TRUE(job.read_ready(3)) << job.output();
    const auto killed = Clock::now();
    kill(job.pids[victim], SIGKILL);
    const std::string wanted = ", rank " + std::to_string(victim) + " did not answer";
    EXPECT_TRUE(job.read_until([&] { return count(job.output(), wanted) > 0; })) << job.output();
    // mpirun passes lines on late, and ends the survivors after two seconds.
    EXPECT_LT(milliseconds_between(killed, Clock::now()), 1900) << job.output();
    EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
    EXPECT_GE(count(job.output(), wanted), 1u) << job.output();
  }
}

TEST(TellFailure, AStoppedRank0IsToldSoonAfterTheDeadline) {
  Job job(2, TINYSHARD_FAULT_RANK, {"tell", "1"});
  ASSERT_TRUE(job.read_ready(2)) << job.output();
  const auto stopped = Clock::now();
  kill(job.pids[0], SIGSTOP);
  EXPECT_TRUE(job.read_until([&] {
    return count(job.output(), "fault_rank: rank 1: all_reduce") > 0;
  })) << job.output();
  EXPECT_LT(milliseconds_between(stopped, Clock::now()), 2000) << job.output();
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
  EXPECT_LT(milliseconds_between(stopped, Clock::now()), 4000) << job.output();
}

TEST(TellFailure, AMistakeOfAllRanksIsToldOnce) {
  Job job(3, TINYSHARD_FAULT_RANK, {"tell_mistake", "30"});
  EXPECT_EQ(job.finish(), 1) << job.output();
  EXPECT_EQ(count(job.output(), "fault_rank: no such corpus"), 1u) << job.output();
}

TEST(JobFault, NoRankOutlivesTheLauncher) {
  for (const char* scenario : {"exit_0", "throw", "exit_1"}) {
    SCOPED_TRACE(scenario);
    Job job(4, TINYSHARD_FAULT_RANK, {scenario, "30"});
    EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
    EXPECT_EQ(job.pids.size(), 4u) << job.output();
    std::this_thread::sleep_for(milliseconds(200));
    for (const auto& [rank, pid] : job.pids) EXPECT_FALSE(lives(pid)) << "rank " << rank;
  }
  for (int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    Job job(4, TINYSHARD_FAULT_RANK, {"tell", "30"});
    ASSERT_TRUE(job.read_ready(4)) << job.output();
    kill(job.pids[victim], SIGKILL);
    EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
    std::this_thread::sleep_for(milliseconds(200));
    for (const auto& [rank, pid] : job.pids) EXPECT_FALSE(lives(pid)) << "rank " << rank;
  }
}

}  // namespace
}  // namespace tinyshard::test
