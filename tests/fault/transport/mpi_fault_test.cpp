// A job under mpirun in which one rank is killed, stopped, ended or gives up. Survivors name the
// culprit in time; the job ends; nothing hangs. Built with TINYSHARD_MPIRUN (the command line
// without -n) and TINYSHARD_FAULT_RANK (the program that plays the ranks).
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kCap{40};  // whatever happens, a job is over by then

struct Report {
  int peer = -1;
  double elapsed_ms = 0, again_ms = 0;
  std::string text;
  Clock::time_point at;  // by the rank's own clock: mpirun may hold its output back for a second
};

class Job {
 public:
  Job(int ranks, const std::string& scenario, const std::string& timeout,
      std::vector<std::string> extra = {}) {
    std::vector<std::string> words;
    std::stringstream command(TINYSHARD_MPIRUN);
    for (std::string word; std::getline(command, word, ' ');) words.push_back(word);
    words.insert(words.end(), extra.begin(), extra.end());
    for (const std::string& word : {std::string("-n"), std::to_string(ranks),
                                    std::string(TINYSHARD_FAULT_RANK), scenario, timeout}) {
      words.push_back(word);
    }
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);

    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    begun_ = Clock::now();
    mpirun_ = fork();
    if (mpirun_ == 0) {
      setpgid(0, 0);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }

  ~Job() {
    for (const auto& [rank, pid] : pids) {
      kill(pid, SIGCONT);
      if (!over_) kill(pid, SIGKILL);
    }
    if (!over_) {
      kill(mpirun_, SIGKILL);
      waitpid(mpirun_, nullptr, 0);
    }
    close(output_);
  }

  // Reads until `enough` or the end of the job. False when the cap is reached first.
  bool read_until(const std::function<bool()>& enough) {
    while (!enough()) {
      const auto left = std::chrono::duration_cast<milliseconds>(begun_ + kCap - Clock::now());
      if (left.count() <= 0) return false;
      pollfd ready{.fd = output_, .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, static_cast<int>(std::min<int64_t>(left.count(), 50))) <= 0) continue;
      char buffer[4096];
      const ssize_t n = read(output_, buffer, sizeof(buffer));
      if (n <= 0) break;
      text_.append(buffer, static_cast<size_t>(n));
      all_.append(buffer, static_cast<size_t>(n));
      for (size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1))
        take(text_.substr(0, end));
    }
    return true;
  }

  bool read_ready(size_t ranks) {
    return read_until([&] { return pids.size() == ranks; }) && pids.size() == ranks;
  }

  // The exit status of mpirun. -1 when it had to be ended.
  int finish() {
    if (!read_until([] { return false; })) return -1;
    while (Clock::now() < begun_ + kCap) {
      int status = 0;
      if (waitpid(mpirun_, &status, WNOHANG) == mpirun_) {
        over_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return -1;
  }

  const std::string& output() const { return all_; }
  Clock::time_point begun() const { return begun_; }

  std::map<int, pid_t> pids;
  std::map<int, Report> reports;

 private:
  void take(const std::string& line) {
    std::stringstream words(line);
    int rank = 0;
    std::string kind;
    if (!(words >> rank >> kind)) return;  // mpirun's own words
    if (kind == "ready") words >> pids[rank];
    if (kind == "report") {
      Report& report = reports[rank];
      Clock::rep at = 0;
      words >> report.peer >> at >> report.elapsed_ms >> report.again_ms;
      std::getline(words, report.text);
      report.at = Clock::time_point(Clock::duration(at));
    }
  }

  pid_t mpirun_ = -1;
  int output_ = -1;
  bool over_ = false;
  Clock::time_point begun_;
  std::string text_, all_;
};

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
  EXPECT_LE(milliseconds_between(since, report.at), within_ms) << report.text;
  EXPECT_GE(report.again_ms, 0) << "the next call did not fail";
  EXPECT_LT(report.again_ms, 10) << "the next call failed late";
}

TEST(MpiFault, AJobThatEndsWell) {
  Job job(3, "done", "30");
  EXPECT_EQ(job.finish(), 0) << job.output();
  EXPECT_EQ(job.pids.size(), 3u);
}

TEST(MpiFault, AKilledRankIsNamedBeforeMpirunEndsTheJob) {
  for (int victim : {0, 1, 2}) {
    Job job(3, "work", "30");
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

// With its own recovery on, mpirun does not end the job: only the survivors' own news helps.
TEST(MpiFault, AKilledRankIsNamedWithoutHelpFromMpirun) {
  Job job(3, "work", "30", {"--enable-recovery"});
  ASSERT_TRUE(job.read_ready(3)) << job.output();
  std::this_thread::sleep_for(milliseconds(20));
  const auto killed = Clock::now();
  kill(job.pids[1], SIGKILL);
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
  expect_report(job, 0, 1, "has ended", killed, 1000);
  expect_report(job, 2, 1, "has ended", killed, 1000);
}

TEST(MpiFault, AStoppedRankIsNamedAtTheDeadlineAndFindsItselfGivenUp) {
  Job job(3, "work", "1");
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

TEST(MpiFault, AShortPauseIsNotAFailure) {
  Job job(2, "work", "5");
  ASSERT_TRUE(job.read_ready(2)) << job.output();
  kill(job.pids[1], SIGSTOP);
  std::this_thread::sleep_for(milliseconds(500));
  kill(job.pids[1], SIGCONT);
  const auto quiet_until = Clock::now() + milliseconds(500);
  job.read_until([&] { return Clock::now() > quiet_until || !job.reports.empty(); });
  EXPECT_TRUE(job.reports.empty()) << job.output();
}

// What a survivor sees when the dead rank was on another host: the launcher's SIGTERM.
TEST(MpiFault, TheLaunchersSignalEndsTheWait) {
  Job job(3, "work", "30");
  ASSERT_TRUE(job.read_ready(3)) << job.output();
  kill(job.pids[1], SIGSTOP);
  std::this_thread::sleep_for(milliseconds(50));
  const auto signalled = Clock::now();
  kill(job.pids[0], SIGTERM);
  EXPECT_TRUE(job.read_until([&] { return job.reports.size() == 2; })) << job.output();
  expect_report(job, 0, 1, "the launcher is ending the job (SIGTERM)", signalled, 1000);
  kill(job.pids[1], SIGCONT);
  EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
}

TEST(MpiFault, ARankThatThrowsOrAbortsTellsTheOthersWhy) {
  Job thrown(3, "throw", "30");
  EXPECT_NE(thrown.finish(), -1) << thrown.output();
  expect_report(thrown, 0, 1, "destroyed by an exception", thrown.begun(), 10000);
  EXPECT_LT(thrown.reports[0].elapsed_ms, 1000);
  Job aborted(3, "abort", "30");
  EXPECT_NE(aborted.finish(), -1) << aborted.output();
  for (int rank : {0, 2}) {
    expect_report(aborted, rank, 1, "rank 1 left: aborted: no such corpus", aborted.begun(), 10000);
    EXPECT_LT(aborted.reports[rank].elapsed_ms, 1000);
  }
}

TEST(MpiFault, ARankThatExitsWithAnErrorIsNamed) {
  Job job(3, "exit_1", "30");
  EXPECT_NE(job.finish(), -1) << job.output();
  expect_report(job, 0, 1, "has ended", job.begun(), 10000);
  EXPECT_LT(job.reports[0].elapsed_ms, 1000);
}

TEST(MpiFault, ARankThatExitsTooEarlyIsFoundAtTheDeadline) {
  Job job(3, "exit_0", "1");
  const int status = job.finish();
  EXPECT_NE(status, -1) << job.output();
  EXPECT_NE(status, 0) << job.output();
  expect_report(job, 0, 1, "", job.begun(), 10000);  // still waiting at its exit, or just gone
}

TEST(MpiFault, ARankThatDoesNotJoin) {
  Job job(2, "late", "1");
  const int status = job.finish();
  EXPECT_NE(status, -1) << job.output();
  EXPECT_NE(status, 0) << job.output();
  ASSERT_TRUE(job.reports.contains(0)) << job.output();
  EXPECT_NE(job.reports[0].text.find("did not come"), std::string::npos) << job.reports[0].text;
  EXPECT_LT(job.reports[0].elapsed_ms, 3000);
}

}  // namespace
