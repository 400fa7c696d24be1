#include "launch/environment.h"

#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard::environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_error(const Variables& variables, const std::string& mention) {
  try {
    read(variables);
    ADD_FAILURE() << "no error that mentions " << mention;
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(mention), std::string::npos) << error.what();
  }
}

void expect(const LaunchEnvironment& launch, Launcher launcher, int rank, int size, int local_rank,
            int local_size) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.size, size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_size, local_size);
}

const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSrun = {{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "6"},
                         {"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "2"},  {"SLURM_TASKS_PER_NODE", "2(x3)"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

TEST(LaunchEnvironment, NothingIsOneProcess) { expect(read({}), Launcher::None, 0, 1, 0, 1); }

TEST(LaunchEnvironment, Mpirun) { expect(read(kMpirun), Launcher::OpenMpi, 3, 4, 1, 2); }

TEST(LaunchEnvironment, MpirunWinsOverSlurmAndRank) {
  Variables both =
      with(with(kMpirun, kSrun), {{"RANK", "0"}, {"WORLD_SIZE", "9"}, {"PMIX_RANK", "3"}});
  expect(read(both), Launcher::OpenMpi, 3, 4, 1, 2);
}

TEST(LaunchEnvironment, Srun) { expect(read(kSrun), Launcher::Slurm, 5, 6, 1, 2); }

TEST(LaunchEnvironment, SrunStepSmallerThanTheAllocation) {
  Variables step = with(kSrun, {{"SLURM_PROCID", "1"},
                                {"SLURM_STEP_NUM_TASKS", "2"},
                                {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                {"SLURM_NODEID", "0"}});
  expect(read(step), Launcher::Slurm, 1, 2, 1, 2);
}

TEST(LaunchEnvironment, UnevenNodesOfSlurm) {
  Variables last = with(kSrun, {{"SLURM_TASKS_PER_NODE", "2(x2),1"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_PROCID", "4"},
                                {"SLURM_NTASKS", "5"}});
  expect(read(last), Launcher::Slurm, 4, 5, 0, 1);
}

TEST(LaunchEnvironment, ABatchScriptIsNotATask) {
  Variables script = kSrun;
  script.erase("SLURM_STEP_ID");
  expect(read(script), Launcher::None, 0, 1, 0, 1);
}

TEST(LaunchEnvironment, PmixUnderSlurm) {
  expect(read(with(kSrun, {{"PMIX_RANK", "5"}})), Launcher::Pmix, 5, 6, 1, 2);
}

TEST(LaunchEnvironment, RankVariables) {
  expect(read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}),
         Launcher::Rank, 1, 2, 1, 2);
}

TEST(LaunchEnvironment, RanksOfOurOwnLauncherMeetAtItsStore) {
  const Variables own = {{"TS_RANK", "3"},       {"TS_WORLD_SIZE", "4"}, {"TS_LOCAL_RANK", "1"},
                         {"TS_LOCAL_SIZE", "2"}, {"TS_STORE", "h:1"},    {"TS_JOB", "j"},
                         {"TS_EPOCH", "2"},      {"TS_BIND", "10.0.0.1"}};
  const LaunchEnvironment launch = read(with(with(own, kMpirun), kSrun));
  expect(launch, Launcher::Own, 3, 4, 1, 2);
  EXPECT_EQ(launch.meeting.store, "h:1");
  EXPECT_EQ(launch.meeting.job, "j");
  EXPECT_EQ(launch.meeting.epoch, 2u);
  EXPECT_EQ(launch.meeting.bind, "10.0.0.1");
  EXPECT_FALSE(launch.meeting.at_first_rank);
}

TEST(LaunchEnvironment, ARankThatIsStartedLaterHasANumberBehindTheOthers) {
  const Variables own = {{"TS_RANK", "5"},       {"TS_WORLD_SIZE", "4"}, {"TS_LOCAL_RANK", "1"},
                         {"TS_LOCAL_SIZE", "2"}, {"TS_STORE", "h:1"},    {"TS_NEWCOMERS", "4"}};
  EXPECT_TRUE(read(own).is_to_join());
  EXPECT_FALSE(read(with(own, {{"TS_RANK", "3"}})).is_to_join());
  expect_error(with(own, {{"TS_NEWCOMERS", "0"}}), "rank 5 of 4");
  expect_error(with(own, {{"TS_NEWCOMERS", "5"}}), "rank 5 of 4");
}

TEST(LaunchEnvironment, TheMasterServesTheStore) {
  Variables torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(read(torchrun).meeting.store, "node1:29500");
  EXPECT_TRUE(read(torchrun).meeting.at_first_rank);
  // torchrun itself listens there.
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(read(torchrun).meeting.store, "node1:29501");
  torchrun["MASTER_ADDR"] = "fd00::1";
  EXPECT_EQ(read(torchrun).meeting.store, "[fd00::1]:29501");
  torchrun.erase("MASTER_PORT");
  EXPECT_EQ(read(torchrun).meeting.store, "");
}

TEST(LaunchEnvironment, SlurmsFirstHostServesTheStore) {
  const LaunchEnvironment launch =
      read(with(kSrun, {{"SLURM_STEP_NODELIST", "node[01-03,07],other"}, {"SLURM_JOB_ID", "77"}}));
  EXPECT_TRUE(launch.meeting.store.starts_with("node01:")) << launch.meeting.store;
  const LaunchEnvironment next = read(with(kSrun, {{"SLURM_STEP_NODELIST", "node[01-03,07],other"},
                                                   {"SLURM_JOB_ID", "77"},
                                                   {"SLURM_STEP_ID", "1"}}));
  EXPECT_NE(launch.meeting.store, next.meeting.store);
  EXPECT_EQ(first_host("a1,b2"), "a1");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("r[2,4]n.x,b"), "r2n.x");
  EXPECT_EQ(first_host("r[2"), "");
}

TEST(LaunchEnvironment, ListsOfHostsWithSeveralBrackets) {
  EXPECT_EQ(first_host("rack[0-1]-node[0-3],login"), "rack0-node0");
  EXPECT_EQ(first_host("rack[07,9]-node[3,5]x,b"), "rack07-node3x");
  EXPECT_EQ(first_host("rack[0-1]-node[3"), "");
}

// Steps that are none of tasks: a shell of salloc, a batch script.
TEST(LaunchEnvironment, AnInteractiveStepOfSlurmIsNoTask) {
  for (const char* step : {"4294967290", "4294967291", "4294967292", "4294967293", "4294967295"}) {
    expect(read(with(kSrun, {{"SLURM_STEP_ID", step}})), Launcher::None, 0, 1, 0, 1);
    expect(read(with(with(kSrun, {{"SLURM_STEP_ID", step}}), kMpirun)), Launcher::OpenMpi, 3, 4, 1,
           2);
  }
  expect_error(with(kSrun, {{"SLURM_STEP_ID", "4294967296"}}), "SLURM_STEP_ID=\"4294967296\"");
}

TEST(LaunchEnvironment, LaunchersThatAreNotKnownAreNamed) {
  expect_error({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}, "PMI_RANK=1 and PMI_SIZE=4");
  expect(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), Launcher::None, 0, 1, 0, 1);
  expect(read(with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}})), Launcher::Slurm, 5, 6, 1, 2);
}

TEST(LaunchEnvironment, ALauncherWithinARankIsAnError) {
  const Variables own = {{"TS_RANK", "0"}, {"TS_WORLD_SIZE", "1"}};
  for (const auto& [rank, size] : {std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                   std::pair("PMI_RANK", "PMI_SIZE")}) {
    expect_error(with(own, {{rank, "1"}, {size, "2"}}), std::string(size) + "=2");
    expect_error(with(own, {{rank, "1"}, {size, "2"}}), "TS_WORLD_SIZE=1");
    expect_error(with({{"TS_RANK", "0"}, {"TS_WORLD_SIZE", "2"}}, {{rank, "1"}, {size, "2"}}),
                 std::string(rank) + "=1");
  }
  const Variables step = with(kSrun, {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}});
  expect_error(with(own, step), "SLURM_STEP_NUM_TASKS=2");
  // Eight ranks that a task of each of two hosts starts by hand.
  expect(read(with(step, {{"TS_RANK", "7"}, {"TS_WORLD_SIZE", "8"}})), Launcher::Own, 7, 8, 0, 1);
}

TEST(LaunchEnvironment, RanksOfMpirunMeetInItsFolder) {
  const Variables there = {{"PMIX_NAMESPACE", "77"}, {"PMIX_SERVER_TMPDIR", "/tmp/ompi/1"}};
  const Variables one_host = with(with(kMpirun, there), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(read(one_host).meeting.store, "file:/tmp/ompi/1/tinyshard-77");
  EXPECT_EQ(read(with(kMpirun, there)).meeting.store, "") << "of several hosts";
}

TEST(LaunchEnvironment, AStoreThatTheUserNames) {
  for (const Variables& launcher :
       {kMpirun, kSrun, Variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}}}) {
    EXPECT_EQ(read(with(launcher, {{"TS_STORE", "file:/s"}})).meeting.store, "file:/s");
    EXPECT_FALSE(read(with(launcher, {{"TS_STORE", "file:/s"}})).meeting.at_first_rank);
    EXPECT_TRUE(read(with(launcher, {{"TS_STORE", "h:7"}})).meeting.at_first_rank);
  }
}

TEST(LaunchEnvironment, PortsThatAreNone) {
  for (const char* port : {"99999", "0", "-1", "65536"}) {
    expect_error({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", port}},
                 "MASTER_PORT=" + std::string(port) + " is no port");
  }
}

TEST(LaunchEnvironment, Incomplete) {
  expect_error({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE is not");
  expect_error({{"WORLD_SIZE", "2"}}, "RANK is not");
  expect_error({{"PMIX_RANK", "0"}}, "SLURM_NTASKS is not");
}

TEST(LaunchEnvironment, Unreadable) {
  expect_error(with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "3x"}}), "OMPI_COMM_WORLD_RANK=\"3x\"");
}

TEST(LaunchEnvironment, Contradictions) {
  expect_error(with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "4"}}), "rank 4 of 4");
  expect_error(with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}), "rank 1 of 5");
  expect_error({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "rank -1 of 2");
  expect_error({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "rank 0 of 0");
}

}  // namespace
}  // namespace tinyshard::environment_test
