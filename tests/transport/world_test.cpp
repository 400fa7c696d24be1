// The way in: which transport is taken, and what is said when the environment asks for one that
// cannot be.
#include "transport/world.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/transport/job.h"

namespace tinyshard::test {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>&1").c_str(), "r"), pclose);
  std::array<char, 4096> buffer;
  while (pipe && fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  return text;
}

std::string probe(const std::string& environment) {
  return output_of("env " + environment + " " TINYSHARD_WORLD_PROBE);
}

void expect_mentions(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

TEST(World, AloneIsInproc) {
  const std::string text = probe("");
  expect_mentions(text, "inproc: yes, ");
  expect_mentions(text, "mpi: ");
  expect_mentions(text, "connected: 2 participants by inproc");
}

TEST(World, OneRankUnderALauncherIsInproc) {
  expect_mentions(probe("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"),
                  "connected: 2 participants by inproc");
}

TEST(World, ContradictionsAreUserErrors) {
  expect_mentions(probe("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2"),
                  "UserError: the environment of mpirun contradicts itself");
}

TEST(World, ALauncherWithoutMpi) {
  // The library, without its plug-in beside it.
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "tinyshard_without_mpi";
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(TINYSHARD_LIBRARY_DIR)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("libtinyshard.so")) continue;
    fs::remove(folder / file);
    fs::create_symlink(fs::canonical(entry.path()), folder / file);
  }
  const std::string text = probe("LD_LIBRARY_PATH=" + folder.string() +
                                 " OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2");
  expect_mentions(text, "mpi: no, built without MPI");
  expect_mentions(text, "UserError: mpirun started 2 ranks, but there is no MPI to join them");
  expect_mentions(text, "TINYSHARD_MPI=ON");
  fs::remove_all(folder);
}

TEST(World, LaunchersThatDoNotSayWhereToMeet) {
  const std::string text = probe("RANK=1 WORLD_SIZE=4");
  expect_mentions(text, "UserError: RANK and WORLD_SIZE started 4 ranks, but does not say where");
  expect_mentions(text, "MASTER_ADDR and MASTER_PORT are not set");
  expect_mentions(probe("SLURM_PROCID=0 SLURM_STEP_ID=1 SLURM_NTASKS=2"),
                  "SLURM_STEP_NODELIST is not set");
  expect_mentions(probe("TS_RANK=0 TS_WORLD_SIZE=2"), "TS_STORE is not set");
  expect_mentions(probe("TS_TRANSPORT=ipx RANK=1 WORLD_SIZE=4"), "must be one of mpi, tcp, ");
}

// Two processes that nobody but a shell has started, by each contract.
TEST(World, RanksMeetByTcpWithoutALauncher) {
  const std::string folder = ::testing::TempDir() + "/tinyshard_world_test";
  const std::string home = "XDG_CONFIG_HOME=" + folder;
  const std::string port = std::to_string(20000 + getpid() % 10000);
  for (const std::string& contract :
       {"WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " RANK=",
        std::string("SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2 SLURM_JOB_ID=") + port +
            " SLURM_STEP_NODELIST=localhost SLURM_PROCID=",
        "TS_WORLD_SIZE=2 TS_STORE=file:" + folder + "/store TS_RANK="}) {
    SCOPED_TRACE(contract);
    const std::string locals = contract.starts_with("SLURM") ? "SLURM_LOCALID=" : "LOCAL_RANK=";
    std::string second;
    std::thread other([&] { second = probe(fmt::format("{} {}1 {}1", home, contract, locals)); });
    const std::string first = probe(fmt::format("{} {}0 {}0", home, contract, locals));
    other.join();
    expect_mentions(first, "connected: 4 participants by tcp");
    expect_mentions(second, "connected: 4 participants by tcp");
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/store"));
  std::filesystem::remove_all(folder);
}

#if TINYSHARD_HAS_MPI
TEST(World, LaunchersThatMpiDoesNotKnow) {
  expect_mentions(probe("TS_TRANSPORT=mpi RANK=1 WORLD_SIZE=4"),
                  "UserError: RANK and WORLD_SIZE say that this is rank 1 of 4");
  // Open MPI starts here, and leaks what it starts with.
  expect_mentions(probe("TS_TRANSPORT=mpi ASAN_OPTIONS=detect_leaks=0 SLURM_PROCID=0 "
                        "SLURM_STEP_ID=1 SLURM_NTASKS=2"),
                  "UserError: srun says that this is rank 0 of 2, MPI says rank 0 of 1");
}
#endif

TEST(World, InprocRanksConnectOnce) {
  InprocWorld world(1);
  auto only = world.connect(0, 3);
  EXPECT_EQ(only->size(), 3);
  EXPECT_EQ(only->local().size(), 3u);
  EXPECT_EQ(only->transport(), "inproc");
  expect_throw<UserError>([&] { world.connect(0); });
  expect_throw<UserError>([&] { world.connect(1); });
  InprocWorld other(1);
  expect_throw<UserError>([&] { other.connect(0, 0); });
}

}  // namespace
}  // namespace tinyshard::test
