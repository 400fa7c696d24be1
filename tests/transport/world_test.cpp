// The way in: which transport is taken, and what is said when the environment asks for one that
// cannot be.
#include "transport/world.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/transport/job.h"

namespace tinyshard::testing {
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

#if TINYSHARD_HAS_MPI
TEST(World, LaunchersThatMpiDoesNotKnow) {
  expect_mentions(probe("RANK=1 WORLD_SIZE=4"),
                  "UserError: RANK and WORLD_SIZE say that this is rank 1 of 4");
  // Open MPI starts here, and leaks what it starts with.
  expect_mentions(
      probe("ASAN_OPTIONS=detect_leaks=0 SLURM_PROCID=0 SLURM_STEP_ID=1 SLURM_NTASKS=2"),
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
}  // namespace tinyshard::testing
