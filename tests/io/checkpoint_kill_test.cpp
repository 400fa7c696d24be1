// Jobs of one and of several processes save checkpoints in a loop and are killed at random moments:
// what they reported as saved, or something newer, is there whole and right, every time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <random>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>

#include "io/checkpoint.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::io::checkpoint_kill_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::bytes_of;
using test::names_in;
using test::TempFolder;

constexpr int64_t kRows = 63, kColumns = 200;

std::vector<int32_t> rows(int64_t step, int64_t first, int64_t count) {
  std::vector<int32_t> values;
  for (int64_t i = first * kColumns; i < (first + count) * kColumns; ++i) {
    values.push_back(static_cast<int32_t>(1000 * step + i));
  }
  return values;
}

// A barrier between processes, in shared memory. The process at the other side may be dead: whoever
// waits is killed by the test.
struct Shared {
  std::atomic<int> arrived{0}, phase{0};
  std::atomic<bool> all{true}, result{true};
  std::atomic<int64_t> saved{0};  // the last step that rank 0 knows to be committed
  int ranks = 1;

  bool agree(bool ok) {
    if (!ok) all = false;
    const int before = phase;
    if (++arrived == ranks) {
      result = all.exchange(true);
      arrived = 0;
      ++phase;
    } else {
      while (phase == before) std::this_thread::yield();
    }
    return result;
  }
};

[[noreturn]] void job(const fs::path& root, Shared& shared, int rank, int64_t step) {
  for (;; ++step) {
    try {
      const int64_t share = kRows / shared.ranks, first = rank * share;
      const auto x = rows(step, first, share), lr = rows(step, 0, 1);
      CheckpointWriter writer(root, step,
                              {.rank = rank,
                               .ranks = shared.ranks,
                               .agree = [&](bool ok) { return shared.agree(ok); },
                               .keep = 2});
      writer.add({"lr", DType::I32, {1, kColumns}, bytes_of(lr)});
      writer.add_slice({"x", DType::I32, {share, kColumns}, bytes_of(x)}, {kRows, kColumns},
                       {first, 0});
      writer.commit({{"step", std::to_string(step)}});
      if (rank == 0) shared.saved = step;
    } catch (const std::exception& error) {
      (void)!::write(2, error.what(), std::strlen(error.what()));
      ::_exit(1);
    }
  }
}

// `one_only`: a single rank is killed, the others some time later, as by a launcher.
void kill_at_random(int ranks, int kills, bool one_only) {
  const TempFolder folder;
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::mt19937 random(static_cast<unsigned>(ranks));
  int64_t saved = 0, commits = 0;
  int leftovers = 0;
  unsigned patience = 10'000;  // microseconds; about as long as two saves take on this machine
  for (int trial = 0; trial < kills; ++trial) {
    auto* shared = new (memory) Shared;
    shared->ranks = ranks;
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) job(folder.path(), *shared, rank, saved + 1);
      children.push_back(child);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % patience));
    std::shuffle(children.begin(), children.end(), random);
    for (size_t i = 0; i < children.size(); ++i) {
      if (one_only && i == 1) std::this_thread::sleep_for(2ms);
      ::kill(children[i], SIGKILL);
    }
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status)) << "a rank ended by itself, with status " << status;
    }
    const int64_t reported = std::max(saved, shared->saved.load());
    const auto latest = Checkpoint::latest(
        folder.path(),
        {.check_all = true, .warn = [](std::string_view what) { ADD_FAILURE() << what; }});
    if (!latest) {
      ASSERT_EQ(reported, 0) << "step " << reported << " was saved and is gone";
      patience += patience / 4;
      continue;
    }
    // At most one more than reported: the kill fell between the commit and the report.
    ASSERT_GE(latest->step(), reported);
    ASSERT_LE(latest->step(), reported + 1);
    std::vector<int32_t> x(kRows * kColumns), lr(kColumns);
    latest->read("x", std::as_writable_bytes(std::span(x)));
    latest->read("lr", std::as_writable_bytes(std::span(lr)));
    ASSERT_EQ(x, rows(latest->step(), 0, kRows));
    ASSERT_EQ(lr, rows(latest->step(), 0, 1));
    ASSERT_EQ(latest->metadata().at("step"), std::to_string(latest->step()));
    const int64_t progress = latest->step() - saved;
    commits += progress;
    if (progress == 0) patience = std::min(patience + patience / 4, 1'000'000u);
    if (progress > 3) patience -= patience / 5;
    saved = latest->step();
    // Nothing half removed or half written carries a checkpoint's name.
    for (const CheckpointPath& other : list_checkpoints(folder.path())) {
      ASSERT_NO_THROW(Checkpoint(other.path).verify()) << other.path;
    }
    int temporaries = 0;
    for (const std::string& name : names_in(folder.path())) {
      temporaries += name.ends_with(kTempSuffix);
    }
    leftovers += temporaries;
    ASSERT_LE(temporaries, 2) << "what kills leave is removed by the next save";
  }
  ::munmap(memory, sizeof(Shared));
  EXPECT_GT(commits, kills / 10) << "the kills came too early to mean anything";
  EXPECT_GT(leftovers, kills / 20) << "no kill ever fell into a save";
  std::cout << kills << " kills, " << commits << " checkpoints saved, " << leftovers
            << " temporaries left by kills\n";
}

TEST(CheckpointKill, OneProcess) { kill_at_random(1, 150, false); }
TEST(CheckpointKill, AllOfThree) { kill_at_random(3, 60, false); }
TEST(CheckpointKill, OneOfThree) { kill_at_random(3, 60, true); }

}  // namespace
}  // namespace tinyshard::io::checkpoint_kill_test
