// The launcher from outside: exit statuses, the summary, what each rank is told, Ctrl-C, and that
// nothing stays behind whoever is killed. Ranks are shell commands but for the last tests.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/launch/launcher.h"

namespace tinyshard::test {
namespace {

void expect_mentions(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "/tinyshard_run_test_" + std::to_string(getpid()) + "_" + name;
}

TEST(Run, EachRankIsToldItsPlace) {
  const Ran ran = run("-n 3 -- sh -c 'echo I am $TS_RANK of $TS_WORLD_SIZE, $TS_LOCAL_RANK here'");
  EXPECT_EQ(ran.status, 0) << ran.output;
  for (const char* line :
       {"[0] I am 0 of 3, 0 here\n", "[1] I am 1 of 3, 1 here\n", "[2] I am 2 of 3, 2 here\n"})
    expect_mentions(ran.output, line);
}

TEST(Run, OptionsBecomeVariables) {
  const Ran ran =
      run("-n 1 --timeout 7.5 --devices-per-rank 3 --env A=b --no-prefix -- "
          "sh -c 'echo $TS_TIMEOUT $TS_DEVICES_PER_RANK $A $TS_EPOCH'");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.output, "7.5 3 b 0\n");
}

TEST(Run, TheStatusIsThatOfTheCulprit) {
  const auto begun = Clock::now();
  Ran ran = run("-n 3 -- sh -c 'test $TS_RANK = 1 && exit 7; sleep 100'");
  EXPECT_EQ(ran.status, 7) << ran.output;
  expect_mentions(ran.output, "tinyshard run: rank 1 (process ");
  expect_mentions(ran.output, "has ended, with status 7");
  ran = run("-n 3 -- sh -c 'test $TS_RANK = 2 && kill -9 $$; sleep 100'");
  EXPECT_EQ(ran.status, 128 + SIGKILL) << ran.output;
  expect_mentions(ran.output, "tinyshard run: rank 2 (process ");
  expect_mentions(ran.output, "killed by signal 9 (Killed)");
  EXPECT_LT(Clock::now() - begun, seconds(25));
}

// The one that ends first is not always the one to blame.
TEST(Run, WhoIsBlamedIsTheCulprit) {
  const Ran ran =
      run("-n 2 -- bash -c 'if test $TS_RANK = 0; then echo 1 lost it >&$TS_REPORT_FD; exit 3; "
          "fi; sleep 0.4; exit 4'");  // sh knows descriptors of one digit only
  EXPECT_EQ(ran.status, 4) << ran.output;
  expect_mentions(ran.output, "tinyshard run: rank 1 (process ");
}

TEST(Run, AProgramThatDoesNotExistIsNamed) {
  const Ran ran = run("-n 2 -- ./no-such-program");
  EXPECT_EQ(ran.status, 127);
  expect_mentions(ran.output, "./no-such-program: No such file or directory");
}

TEST(Run, WrongCallsSayWhatIsWrong) {
  expect_mentions(run("-n 2").output, "no program is named");
  const Ran misspelt = run("-n 2 --time-out 5 true");
  EXPECT_NE(misspelt.status, 0);
  expect_mentions(misspelt.output, "--time-out: there is no such option");
  expect_mentions(run("-n 9 --hosts a:4,b:4 -- true").output,
                  "9 ranks are wanted, the hosts take 8");
  EXPECT_NE(run("-n 0 -- true").status, 0);
  EXPECT_NE(run("--elastic 2:4 -- true").status, 0);
  expect_mentions(run("--help").output, "Ctrl-C asks the ranks to end");
}

TEST(Run, AJobThatFailsIsStartedAgain) {
  const Ran ran = run("-n 2 --restarts 2 -- sh -c 'test $TS_RANK$TS_EPOCH != 10'");
  EXPECT_EQ(ran.status, 0) << ran.output;
  expect_mentions(ran.output, "starting again, 1 of 2");
  EXPECT_EQ(ran.output.find("starting again, 2 of 2"), std::string::npos) << ran.output;
  EXPECT_EQ(run("-n 1 --restarts 1 -- sh -c 'exit 5'").status, 5);
}

TEST(Run, EachRanksOutputIsLogged) {
  const std::string folder = temporary("logs");
  EXPECT_EQ(run("-n 2 --log-dir " + folder + " -- sh -c 'echo out $TS_RANK; echo err >&2'").status,
            0);
  const std::string text = content_of(folder + "/rank-1.log");
  expect_mentions(text, "out 1\n");
  expect_mentions(text, "err\n");
  std::filesystem::remove_all(folder);
}

TEST(Run, WordsWithoutALineEndAndLongLinesArrive) {
  const Ran ran =
      run("-n 1 --no-prefix -- sh -c 'head -c 200000 /dev/zero | tr \"\\0\" x; printf end'");
  EXPECT_EQ(ran.status, 0);
  expect_mentions(ran.output, "xend\n");
  EXPECT_EQ(std::ranges::count(ran.output, 'x'), 200000);
}

TEST(Run, TheKeyStandsOnNoCommandLine) {
  const Ran ran =
      run("-n 1 -- sh -c 'key=$TS_JOB_KEY; test ${#key} = 64 || exit 3; "
          "case \"$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr \"\\0\" \" \")\" in "
          "*\"$key\"*) exit 4;; esac'");
  EXPECT_EQ(ran.status, 0) << ran.output;
}

// The ranks, and what they have started, as their output names them.
std::vector<pid_t> processes_of(const std::string& output) {
  std::vector<pid_t> pids;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    pid_t pid = 0;
    while (words >> key) {
      if (key == "process" && words >> pid) pids.push_back(pid);
    }
  }
  return pids;
}

constexpr const char* kFamily = "sh -c 'sleep 1000 & echo process $$ process $!; wait'";

void expect_all_gone(const std::vector<pid_t>& pids) {
  const auto end = Clock::now() + seconds(5);
  for (pid_t pid : pids) {
    while (lives(pid) && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(lives(pid)) << "process " << pid << " was left behind";
  }
}

TEST(Run, NothingStaysWhenTheLauncherIsKilled) {
  for (int i = 0; i < 5; ++i) {
    Launcher launcher(std::string("-n 3 -- ") + kFamily);
    ASSERT_TRUE(launcher.read_until("process", 6)) << launcher.output();
    std::vector<pid_t> pids = processes_of(launcher.output());
    ASSERT_EQ(pids.size(), 6u) << launcher.output();
    pids.push_back(parent_of(pids[0]));
    kill(launcher.pid(), SIGKILL);
    expect_all_gone(pids);
  }
}

TEST(Run, NothingStaysWhenTheAgentIsKilled) {
  Launcher launcher(std::string("-n 3 -- ") + kFamily);
  ASSERT_TRUE(launcher.read_until("process", 6)) << launcher.output();
  const std::vector<pid_t> pids = processes_of(launcher.output());
  const pid_t agent = parent_of(pids.at(0));
  ASSERT_EQ(parent_of(agent), launcher.pid());
  kill(agent, SIGKILL);
  EXPECT_EQ(launcher.finish(), 128 + SIGKILL) << launcher.output();
  expect_all_gone(pids);
}

TEST(Run, NothingStaysWhenARankIsKilled) {
  Launcher launcher(std::string("-n 3 -- ") + kFamily);
  ASSERT_TRUE(launcher.read_until("process", 6)) << launcher.output();
  const std::vector<pid_t> pids = processes_of(launcher.output());
  kill(pids.at(0), SIGKILL);
  EXPECT_EQ(launcher.finish(), 128 + SIGKILL) << launcher.output();
  expect_all_gone(pids);
}

TEST(Run, TheFirstInterruptAsksTheSecondKills) {
  {
    Launcher launcher(
        "-n 2 -- sh -c 'trap \"echo asked; exit 0\" TERM; echo begun; while :; do sleep 0.05; "
        "done'");
    ASSERT_TRUE(launcher.read_until("begun", 2)) << launcher.output();
    kill(launcher.pid(), SIGINT);
    EXPECT_EQ(launcher.finish(), 128 + SIGINT) << launcher.output();
    EXPECT_EQ(launcher.count("asked"), 2) << launcher.output();
    expect_mentions(launcher.output(), "once more kills them");
  }
  Launcher launcher("-n 2 -- sh -c 'trap \"\" TERM; echo begun; while :; do sleep 0.05; done'");
  ASSERT_TRUE(launcher.read_until("begun", 2)) << launcher.output();
  kill(launcher.pid(), SIGINT);
  ASSERT_TRUE(launcher.read_until("once more")) << launcher.output();
  const auto second = Clock::now();
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.finish(), 128 + SIGINT) << launcher.output();
  EXPECT_LT(Clock::now() - second, seconds(5));
}

// A stand-in for ssh: a shell on this machine that says which host it plays.
TEST(Run, OtherHostsAreReachedByARemoteShell) {
  const std::string shell = temporary("rsh");
  std::ofstream(shell) << "#!/bin/sh\nexport PLAYS=$1\nshift\ncd /\nexec sh -c \"$*\"\n";
  chmod(shell.c_str(), 0700);
  const Ran ran =
      run("--hosts alpha:2,beta:1 --bind 127.0.0.1 --env GIVEN=x --rsh " + shell +
          " -- sh -c 'echo $PLAYS $TS_RANK $TS_LOCAL_RANK of $TS_LOCAL_SIZE $GIVEN in $PWD'");
  EXPECT_EQ(ran.status, 0) << ran.output;
  const std::string here = std::filesystem::current_path().string();
  for (const char* line :
       {"[0] alpha 0 0 of 2 x in ", "[1] alpha 1 1 of 2 x in ", "[2] beta 2 0 of 1 x in "})
    expect_mentions(ran.output, line + here + "\n");
  const Ran lost = run("--hosts alpha:1,beta:1 --bind 127.0.0.1 --rsh false -- true");
  EXPECT_NE(lost.status, 0);
  expect_mentions(lost.output, "its agent on ");
  std::filesystem::remove(shell);
}

#ifdef TINYSHARD_GPT2
// The same program, over TCP and over MPI, learns the same weights, bit for bit.
TEST(Run, TrainingOverTcpGivesTheBitsOfMpi) {
  const std::string by_tcp = temporary("tcp.safetensors"), by_mpi = temporary("mpi.safetensors");
  const std::string folder = temporary("checkpoints");
  const auto program = [&](const std::string& weights) {
    return std::string(TINYSHARD_GPT2
                       " --tokens random --layers 2 --width 64 --heads 2 --context 32 --batch 8 "
                       "--steps 4 --dtype f32 --devices CPU --checkpoint ") +
           folder + " --save-weights " + weights;
  };
  const Ran ran = run("-n 2 -- " + program(by_tcp));
  EXPECT_EQ(ran.status, 0) << ran.output;
  std::filesystem::remove_all(folder);
  EXPECT_EQ(std::system((TINYSHARD_MPIRUN_2 " " + program(by_mpi) + " >/dev/null 2>&1").c_str()),
            0);
  EXPECT_GT(content_of(by_tcp).size(), 1u << 16);
  EXPECT_TRUE(content_of(by_tcp) == content_of(by_mpi));
  for (const std::string& path : {by_tcp, by_mpi, folder}) std::filesystem::remove_all(path);
}
#endif

}  // namespace
}  // namespace tinyshard::test
