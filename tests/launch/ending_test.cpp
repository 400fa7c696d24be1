// Endings: who is told to end ends with its job, in time and with the status of the signal; nothing is
// left, and every line is seen. scripts/faults.py end does so at random moments.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "launch/rank_group.h"
#include "tests/launch/launcher.h"

namespace tinyshard::test {
namespace {

namespace fs = std::filesystem;

void expect_mentions(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(::testing::TempDir() + "/tinyshard_ending_test_" + std::to_string(getpid()) + "_" +
              name) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void expect_all_gone(const std::vector<pid_t>& pids) {
  const auto end = Clock::now() + seconds(5);
  for (pid_t pid : pids) {
    while (lives(pid) && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_FALSE(lives(pid)) << "process " << pid << " was left behind";
    if (lives(pid)) kill(pid, SIGKILL);
  }
}

constexpr auto kTwoRanks = "-n 2 -- " TINYSHARD_ENDING_RANK " ";

// Sends the signal to the launcher and expects its end.
void expect_ends(Launcher& launcher, pid_t whom, int signal, double within_s) {
  const auto told = Clock::now();
  kill(whom, signal);
  EXPECT_EQ(launcher.finish(), 128 + signal) << launcher.output();
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - told).count(), within_s)
      << launcher.output();
  expect_all_gone(pids_behind("ready", launcher.output()));
}

TEST(Ending, TheLauncherIsTold) {
  for (const char* action : {"step", "sleep", "wait", "compile", "ignore", "print"}) {
    SCOPED_TRACE(action);
    Launcher launcher(std::string(kTwoRanks) + action);
    ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
    expect_ends(launcher, launcher.pid(), SIGINT, 2);
  }
}

TEST(Ending, AnAgentIsTold) {
  Launcher launcher(std::string(kTwoRanks) + "step");
  ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
  expect_ends(launcher, parent_of(pids_behind("ready", launcher.output())[0]), SIGTERM, 2);
}

TEST(Ending, ARankIsTold) {
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    for (const char* action : {"step", "sleep", "save "}) {
      SCOPED_TRACE(action);
      const Folder folder("told");
      Launcher launcher("-n 2 -- " TINYSHARD_ENDING_RANK " " + std::string(action) +
                        (action == std::string("save ") ? folder / "saved" : ""));
      ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
      expect_ends(launcher, pids_behind("ready", launcher.output())[1], signal, 3);
      if (action == std::string("save ")) expect_mentions(launcher.output(), "saved step ");
    }
  }
}

// The shell ends at once, the program below it saves.
TEST(Ending, AProgramThatAsksForTimeSaves) {
  for (const char* shell : {"", "sh -c '\"$@\"; true' sh ", "timeout 97 "}) {
    SCOPED_TRACE(shell);
    const Folder folder("saves");
    Launcher launcher("-n 2 -- " + std::string(shell) + TINYSHARD_ENDING_RANK " save " +
                      (folder / "saved"));
    ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
    std::this_thread::sleep_for(milliseconds(100));
    expect_ends(launcher, launcher.pid(), SIGTERM, 3);
    expect_mentions(launcher.output(), "saved step ");
  }
}

TEST(Ending, ItSavesThoughTheShellAboveItIsTold) {
  const Folder folder("shell");
  Launcher launcher("-n 2 -- sh -c '\"$@\"; true' sh " TINYSHARD_ENDING_RANK " save " +
                    (folder / "saved"));
  ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
  std::this_thread::sleep_for(milliseconds(100));
  expect_ends(launcher, parent_of(pids_behind("ready", launcher.output())[1]), SIGTERM, 3);
  expect_mentions(launcher.output(), "saved step ");
}

// As batch systems do, and `timeout`, which tells its program and then its group.
TEST(Ending, AWishThatComesToEveryProcessIsOne) {
  const Folder folder("everybody");
  Launcher launcher("-n 2 -- " TINYSHARD_ENDING_RANK " save " + (folder / "saved"));
  ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
  const std::vector<pid_t> ranks = pids_behind("ready", launcher.output());
  const pid_t agent = parent_of(ranks[0]);
  for (pid_t pid : {launcher.pid(), agent, ranks[0], ranks[1], launcher.pid()}) kill(pid, SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM) << launcher.output();
  expect_mentions(launcher.output(), "saved step ");
}

TEST(Ending, ItGetsNoMoreTimeThanItAskedFor) {
  Launcher launcher(std::string(kTwoRanks) + "dawdle");
  ASSERT_TRUE(launcher.read_until("ready", 2)) << launcher.output();
  const auto told = Clock::now();
  expect_ends(launcher, launcher.pid(), SIGTERM, 3);
  EXPECT_GT(Clock::now() - told, milliseconds(900));
}

TEST(Ending, OtherProgramsGetTheGraceOfTheLauncher) {
  Launcher launcher(
      "--grace 5 -n 1 -- sh -c 'trap \"sleep 1; echo saved; exit 3\" TERM; echo up; "
      "while :; do sleep 0.05; done'");
  ASSERT_TRUE(launcher.read_until("up")) << launcher.output();
  kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  expect_mentions(launcher.output(), "saved");
}

TEST(Ending, IgnoredSignalsStayIgnored) {
  for (int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) {
    Launcher launcher("-n 1 -- sh -c 'echo up; sleep 0.6; echo done'",
                      [&] { std::signal(signal, SIG_IGN); });
    ASSERT_TRUE(launcher.read_until("up")) << launcher.output();
    kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.finish(), 0) << launcher.output();
    expect_mentions(launcher.output(), "done");
  }
}

TEST(Ending, SignalsOfBatchSystemsAreHandedOn) {
  for (const char* name : {"USR1", "USR2", "XCPU"}) {
    Launcher launcher("-n 2 -- bash -c 'trap \"echo got; exit 0\" " + std::string(name) +
                      "; echo up; while :; do sleep 0.05; done'");
    ASSERT_TRUE(launcher.read_until("up", 2)) << launcher.output();
    kill(launcher.pid(), name == std::string("USR1")   ? SIGUSR1
                         : name == std::string("USR2") ? SIGUSR2
                                                       : SIGXCPU);
    EXPECT_EQ(launcher.finish(), 0) << launcher.output();
    EXPECT_EQ(launcher.count("got"), 2) << launcher.output();
  }
}

TEST(Ending, AParentThatIgnoresItsChildrenCostsNoStatus) {
  for (int status : {0, 5}) {
    // Shells take it back, so that it is the last before the launcher to ignore it.
    Launcher launcher("-n 2 -- sh -c 'exit " + std::to_string(status) + "'", {},
                      "env --ignore-signal=CHLD");
    EXPECT_EQ(launcher.finish(), status) << launcher.output();
  }
}

TEST(Ending, SignalsAreHeardThoughNobodyReads) {
  Launcher launcher("-n 2 -- yes");
  ASSERT_TRUE(launcher.read_until("y\n", 2));
  std::this_thread::sleep_for(milliseconds(500));  // for all pipes to fill
  const auto told = Clock::now();
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  EXPECT_LT(Clock::now() - told, seconds(2));
}

// In whatever group or session, with whatever environment.
constexpr const char* kFamily =
    "sh -c 'sleep 1000 & echo process $!; setsid sleep 1000 & echo process $!; "
    "env -i setsid sleep 1000 & echo process $!; timeout 99 sleep 1000 & echo process $!; "
    "(setsid sh -c \"sleep 1000 & echo process \\$! ; sleep 1000\" &) ; "
    "echo process $$; sleep 1000; true'";

TEST(Ending, NothingStaysOfWhatRanksStarted) {
  for (const char* whom : {"launcher", "rank", "launcher is killed"}) {
    SCOPED_TRACE(whom);
    Launcher launcher(std::string("-n 2 -- ") + kFamily);
    ASSERT_TRUE(launcher.read_until("process", 12)) << launcher.output();
    std::this_thread::sleep_for(milliseconds(100));
    const std::vector<pid_t> pids = pids_behind("process", launcher.output());
    if (whom == std::string("rank")) {
      for (pid_t pid : pids) {
        if (parent_of(parent_of(pid)) == launcher.pid()) kill(pid, SIGKILL);
      }
    } else {
      kill(launcher.pid(), whom == std::string("launcher") ? SIGTERM : SIGKILL);
    }
    EXPECT_NE(launcher.wait(), 0);
    expect_all_gone(pids);
  }
}

TEST(Ending, WhatARankLeavesWhenItEndsWellGoesToo) {
  const auto begun = Clock::now();
  const Ran ran =
      run("-n 1 -- sh -c 'setsid sleep 1000 & echo process $!; (env -i setsid sleep 1000 & "
          "echo process $!)'");
  EXPECT_EQ(ran.status, 0) << ran.output;
  EXPECT_LT(Clock::now() - begun, seconds(5));
  expect_all_gone(pids_behind("process", ran.output));
}

// The children keep to their environment: with neither launcher nor agent it is what names them.
TEST(Ending, NothingStaysWhenLauncherAndAgentAreKilledTogether) {
  for (int i = 0; i < 3; ++i) {
    Launcher launcher(
        "-n 3 -- sh -c 'sleep 1000 & echo process $!; setsid sleep 1000 & echo process $!; "
        "echo process $$; sleep 1000; true'");
    ASSERT_TRUE(launcher.read_until("process", 9)) << launcher.output();
    const std::vector<pid_t> pids = pids_behind("process", launcher.output());
    pid_t agent = -1;
    for (pid_t pid : pids) {
      if (parent_of(parent_of(pid)) == launcher.pid()) agent = parent_of(pid);
    }
    ASSERT_GT(agent, 0);
    kill(launcher.pid(), SIGKILL);
    kill(agent, SIGKILL);
    EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
    expect_all_gone(pids);
  }
}

// As kernels before 5.3 and some containers do.
void refuse_pidfd_open() {
  std::array<sock_filter, 4> rules = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 434, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter = {.len = rules.size(), .filter = rules.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    _exit(99);
}

TEST(Ending, KernelsWithoutDescriptorsOfProcesses) {
  Launcher well("-n 2 -- true", refuse_pidfd_open);
  EXPECT_EQ(well.wait(seconds(20)), 0);
  Launcher bad("-n 2 -- sh -c 'test $TS_RANK = 1 && exit 4; sleep 100'", refuse_pidfd_open);
  EXPECT_EQ(bad.wait(seconds(20)), 4);
}

TEST(Ending, ManyRanksWithFewDescriptors) {
  const auto limit = [](rlim_t soft, rlim_t hard) {
    return [=] {
      const rlimit now{soft, hard};
      if (setrlimit(RLIMIT_NOFILE, &now) != 0) _exit(99);
    };
  };
  rlimit own{};
  getrlimit(RLIMIT_NOFILE, &own);
  Launcher many("-n 100 -- sh -c 'ulimit -n'", limit(128, std::min<rlim_t>(own.rlim_max, 4096)));
  EXPECT_EQ(many.finish(), 0) << many.output();
  EXPECT_EQ(many.count("] 128\n"), 100) << many.output();
  Launcher few("-n 8 -- sleep 100", limit(20, 20));
  EXPECT_EQ(few.finish(), 126) << few.output();
  expect_mentions(few.output(), "was not started: pipe: Too many open files");
}

// A deadline of the job is no time to wait for descriptors.
TEST(Ending, ARankWithoutDescriptorsSaysSo) {
  for (const char* most : {"8", "9", "10", "11", "12"}) {
    SCOPED_TRACE(most);
    const auto begun = Clock::now();
    Launcher launcher(std::string("-n 2 --timeout 100 -- sh -c 'ulimit -n ") + most +
                      " && exec " TINYSHARD_ENDING_RANK " meet_only'");
    EXPECT_NE(launcher.finish(), 0) << launcher.output();
    EXPECT_LT(Clock::now() - begun, seconds(20)) << launcher.output();
  }
  Launcher soft("-n 4 -- sh -c 'ulimit -Sn 13 && exec " TINYSHARD_ENDING_RANK " meet_only'");
  EXPECT_EQ(soft.finish(), 0) << soft.output();
}

// A file of any size is refused: logs, memory that ranks share, compiled kernels.
TEST(Ending, FilesThatMayNotGrowCostNoJob) {
  const Folder folder("no_size");
  const auto none = [] {
    const rlimit now{0, 0};
    if (setrlimit(RLIMIT_FSIZE, &now) != 0) _exit(99);
  };
  Launcher launcher("-n 2 --log-dir " + folder.path() + " -- " TINYSHARD_ENDING_RANK " meet_only",
                    none);
  EXPECT_EQ(launcher.finish(), 0) << launcher.output();
  expect_mentions(launcher.output(), "1 of 2 by ");
  expect_mentions(launcher.output(), "rank-0.log ends here: File too large; the job goes on");
}

void quit_reading() {
  int ends[2];
  if (pipe(ends) != 0) _exit(99);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[0]);
  close(ends[1]);
}

TEST(Ending, AReaderThatQuitsEndsTheJob) {
  const auto told = Clock::now();
  Launcher launcher("-n 2 -- sh -c 'echo line; sleep 100'", quit_reading);
  EXPECT_EQ(launcher.finish(), 128 + SIGPIPE) << launcher.output();
  EXPECT_LT(Clock::now() - told, seconds(5));
  expect_mentions(launcher.output(), "tinyshard run: ended, as nobody reads its output any more");
  Launcher ignores("-n 2 -- sh -c 'echo line; sleep 0.5'", [] {
    quit_reading();
    std::signal(SIGPIPE, SIG_IGN);
  });
  EXPECT_EQ(ignores.finish(), 0) << ignores.output();
}

TEST(Ending, OutputOnAFullDiskIsTold) {
  Launcher launcher("-n 2 -- echo line", [] {
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    dup2(full, STDOUT_FILENO);
  });
  EXPECT_EQ(launcher.finish(), 0) << launcher.output();
  expect_mentions(launcher.output(), "standard output ends here: No space left on device");
}

// A replacement that cannot be started is told, and the job goes on to its end.
TEST(Ending, AReplacementThatCannotBeStarted) {
  Launcher launcher(
      "-n 2 --elastic 1:2 -- sh -c 'echo process $$; sleep 1; test $TS_RANK = 0 || exit 1; sleep "
      "2'");
  ASSERT_TRUE(launcher.read_until("process", 2)) << launcher.output();
  const pid_t agent = parent_of(pids_behind("process", launcher.output())[0]);
  ASSERT_EQ(parent_of(agent), launcher.pid());
  // No number is free but the three that rank 1 leaves; two pipes need four.
  rlim_t first_free = 0;
  while (fs::exists(
      fs::symlink_status("/proc/" + std::to_string(agent) + "/fd/" + std::to_string(first_free))))
    ++first_free;
  const rlimit none{first_free, first_free};
  ASSERT_EQ(prlimit(agent, RLIMIT_NOFILE, &none, nullptr), 0);
  EXPECT_EQ(launcher.finish(), 0) << launcher.output();
  expect_mentions(launcher.output(), "rank 2 on ");
  expect_mentions(launcher.output(), "was not started: pipe: Too many open files");
}

TEST(Ending, AKeyThatIsAFifoIsRefusedAtOnce) {
  const Folder folder("fifo");
  ASSERT_EQ(mkfifo((folder / "key").c_str(), 0600), 0);
  const auto begun = Clock::now();
  const int status =
      std::system(("env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517 "
                   "TS_JOB_KEY_FILE=" +
                   (folder / "key") + " timeout 20 " TINYSHARD_ENDING_RANK " meet_only > " +
                   (folder / "said") + " 2>&1")
                      .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_LT(Clock::now() - begun, seconds(10));
  expect_mentions(content_of(folder / "said"), "is no regular file");
}

// Beside its standard streams and what the launcher inherited itself a rank has the pipe to its agent.
TEST(Ending, RanksInheritNoDescriptors) {
  const std::string list = "sh -c 'ls /proc/$$/fd; true'";
  const Folder folder("descriptors");
  ASSERT_EQ(std::system((list + " </dev/null >" + (folder / "out")).c_str()), 0);
  const std::string plain = content_of(folder / "out");
  const Ran ran = run("--no-prefix -n 3 -- " + list);
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(std::ranges::count(ran.output, '\n'), 3 * (std::ranges::count(plain, '\n') + 1))
      << ran.output << "instead of\n"
      << plain << "and one more";
}

TEST(Ending, LinesAreSeenThoughTheRankIsKilled) {
  const Folder folder("lines");
  const Ran ran = run("-n 2 --log-dir " + folder.path() + " -- " TINYSHARD_ENDING_RANK " crash");
  EXPECT_EQ(ran.status, 128 + SIGSEGV) << ran.output;
  for (const char* line : {"[0] before the crash\n", "[1] before the crash\n"})
    expect_mentions(ran.output, line);
  expect_mentions(content_of(folder / "rank-1.log"), "before the crash\n");
}

TEST(Ending, UnfinishedLinesAreShownSoon) {
  Launcher launcher(
      "-n 1 -- sh -c 'printf \"\\r 10 %%\"; sleep 0.3; printf \"\\r 20 %%\"; sleep 100'");
  const auto begun = Clock::now();
  ASSERT_TRUE(launcher.read_until("20 %")) << launcher.output();
  EXPECT_LT(Clock::now() - begun, seconds(5));
  EXPECT_EQ(launcher.output(), "[0] \r[0]  10 %\r[0]  20 %");
}

TEST(Ending, InputGoesToRank0) {
  const Folder folder("input");
  std::string bytes;
  for (int i = 0; i < 400000; ++i) bytes += char(i * 7 ^ i >> 9);
  std::ofstream(folder / "in", std::ios::binary) << bytes;
  EXPECT_EQ(std::system((TINYSHARD_CLI " run -n 2 --no-prefix -- sh -c 'cat > " + (folder / "out") +
                         "-$TS_RANK' < " + (folder / "in"))
                            .c_str()),
            0);
  EXPECT_TRUE(content_of(folder / "out-0") == bytes);
  EXPECT_EQ(content_of(folder / "out-1"), "");
}

TEST(Ending, LogsOfEachAttemptAreKept) {
  const Folder folder("logs");
  const std::string to = " --log-dir " + folder.path() + " ";
  EXPECT_EQ(run("-n 3" + to + "-- sh -c 'echo first job'").status, 0);
  EXPECT_EQ(run("-n 2 --restarts 1" + to +
                "-- sh -c 'echo attempt $TS_EPOCH; test $TS_EPOCH = 1 || exit 3'")
                .status,
            0);
  EXPECT_EQ(content_of(folder / "rank-0.log"), "attempt 0\n");
  EXPECT_EQ(content_of(folder / "rank-1.attempt-1.log"), "attempt 1\n");
  EXPECT_FALSE(fs::exists(folder / "rank-2.log")) << "a log of the job before";
  EXPECT_EQ(content_of(folder / "rank-2.log.old"), "first job\n");
}

TEST(Ending, AFullDiskIsToldAndStopsNoJob) {
  const Folder folder("full");
  // A limit of the file size is the disk that a test can fill.
  Launcher limited(
      "-n 2 --log-dir " + folder.path() + " -- sh -c 'for i in $(seq 2000); do echo line $i; done'",
      [] {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit few{4096, 4096};
        setrlimit(RLIMIT_FSIZE, &few);
      });
  EXPECT_EQ(limited.finish(), 0) << limited.output();
  EXPECT_EQ(limited.count("rank-0.log ends here: "), 1) << limited.output();
  EXPECT_EQ(limited.count("line 2000\n"), 2);
}

TEST(Ending, BytesStayWhatTheyAre) {
  const Folder folder("caf\xe9");
  const Ran ran =
      run("--env 'GIVEN=\xff\xfe' --no-prefix -n 1 -- sh -c 'printf \"%s|%s\" \"$1\" \"$GIVEN\"' "
          "x 'caf\xe9'");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.output, "caf\xe9|\xff\xfe\n");
  Launcher there("--no-prefix -n 1 -- pwd", [&] {
    if (chdir(folder.path().c_str()) != 0) _exit(99);
  });
  EXPECT_EQ(there.finish(), 0) << there.output();
  EXPECT_NE(there.output().find("caf\xe9"), std::string::npos);
  const RankGroup group = rank_group_from_json(
      to_json({.command = {"\x80\xff\xc3\xa9"}, .environment = {"A=\n\\"}, .folder = "\xe9"}));
  EXPECT_EQ(group.command[0], "\x80\xff\xc3\xa9");
  EXPECT_EQ(group.environment[0], "A=\n\\");
  EXPECT_EQ(group.folder, "\xe9");
  EXPECT_EQ(unescaped(escaped("a\nb\\n\n")), "a\nb\\n\n");
}

TEST(Ending, ABinaryOfAnotherMachineIsNoScript) {
  const Folder folder("arm");
  std::ofstream(folder / "arm") << "\x7f"
                                   "ELF\x02\x01\n touch "
                                << (folder / "ran") << "\n";
  chmod((folder / "arm").c_str(), 0700);
  const Ran ran = run("-n 1 -- " + (folder / "arm"));
  EXPECT_EQ(ran.status, 126) << ran.output;
  expect_mentions(ran.output, "Exec format error");
  EXPECT_FALSE(fs::exists(folder / "ran"));
}

TEST(Ending, AProgramThatARankStartsHasNoPlaceInTheJob) {
  const Ran ran = run(std::string(kTwoRanks) + "child");
  EXPECT_EQ(ran.status, 1) << ran.output;
  expect_mentions(ran.output, "start it by \"env -u TS_RANK -u TS_WORLD_SIZE\"");
}

// The third value that rank 1 gives is another one, and nothing is computed with it.
TEST(Ending, RanksThatDifferInWhatNobodyHasComparedDoNotEndWell) {
  for (const char* action : {"drift exit", "drift shutdown", "drift checkpoint"}) {
    SCOPED_TRACE(action);
    const Folder folder("drift");
    const Ran ran = run(std::string(kTwoRanks) + action + " " + (folder / "saved"));
    EXPECT_EQ(ran.status, 1) << ran.output;
    expect_mentions(ran.output, "the ranks diverged: in ");
    expect_mentions(ran.output, "f32[4] of shard (ending_rank.cpp:");
  }
  EXPECT_EQ(run(std::string(kTwoRanks) + "drift nothing").status, 0);
}

TEST(Ending, ARankThatIsGoneCostsTheEndOfTheOthersNothing) {
  const auto begun = Clock::now();
  const Ran ran = run("--elastic 1 " + std::string(kTwoRanks) + "drift killed");
  EXPECT_EQ(ran.status, 0) << ran.output;
  EXPECT_LT(Clock::now() - begun, seconds(10));
  EXPECT_EQ(ran.output.find("diverged"), std::string::npos) << ran.output;
}

TEST(Ending, AJobWithinAJob) {
  const Ran ran = run("-n 2 --elastic 1:2 -- " TINYSHARD_CLI " run -n 3 -- " TINYSHARD_ENDING_RANK
                      " meet_only");
  EXPECT_EQ(ran.status, 0) << ran.output;
  EXPECT_EQ(std::count(ran.output.begin(), ran.output.end(), '\n'), 6) << ran.output;
}

#ifdef TINYSHARD_MPIRUN_2
std::string output_of(const std::string& command, int* status) {
  std::string text;
  FILE* pipe = popen((command + " 2>&1 </dev/null").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), n);
  *status = pclose(pipe);
  return text;
}

TEST(Ending, MpirunWithinARankIsToldApart) {
  const Ran ran = run("-n 1 -- " TINYSHARD_MPIRUN_2 " " TINYSHARD_ENDING_RANK " meet_only");
  EXPECT_NE(ran.status, 0);
  expect_mentions(ran.output, "TS_WORLD_SIZE=1");
  expect_mentions(ran.output, "OMPI_COMM_WORLD_SIZE=2");
  int status = 0;
  const std::string around = output_of(
      TINYSHARD_MPIRUN_2 " " TINYSHARD_CLI " run -n 3 -- " TINYSHARD_ENDING_RANK " meet_only",
      &status);
  EXPECT_EQ(status, 0) << around;
}

TEST(Ending, RanksOfMpirunTalkByTcp) {
  int status = 0;
  const std::string text = output_of(
      "TS_TRANSPORT=tcp " TINYSHARD_MPIRUN_2 " " TINYSHARD_ENDING_RANK " meet_only", &status);
  EXPECT_EQ(status, 0) << text;
  expect_mentions(text, "2 of 2 by tcp");
}
#endif

}  // namespace
}  // namespace tinyshard::test
