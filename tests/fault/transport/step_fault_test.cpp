// A rank is killed in the middle of a captured step, again and again: the other one is told by a
// CommError that names it, and the collective that was under way, before mpirun ends the job.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/fault/transport/job.h"

namespace tinyshard::test {
namespace {

// The collective that a rank of step_rank began last, as run << 16 | item.
uint64_t last_begun(const std::filesystem::path& folder, int rank) {
  uint64_t last = 0;
  std::ifstream file(folder / std::to_string(rank), std::ios::binary);
  file.read(reinterpret_cast<char*>(&last), sizeof(last));
  return last;
}

// The collective that an error names, and the one that was completed last:
// "... reduce_scatter sum f32 x 64 on mesh axis "data" #2, ... (step_rank.cpp:55), in run 7 of
// schedule 9f3a; last completed: all_reduce #1 of run 7".
struct Named {
  std::string call;
  uint64_t item = 0, run = 0, done_item = 0, done_run = 0;
};
Named named_by(const std::string& text) {
  std::smatch found;
  const std::regex form(
      R"re((\w+ (sum|max) \w+ x \d+) on mesh axis "data" #(\d+),.*\(step_rank\.cpp:\d+\), in run (\d+) of schedule \w+; last completed: \w+ #(\d+) of run (\d+))re");
  if (!std::regex_search(text, found, form)) return {};
  return {found[1], std::stoull(found[3]), std::stoull(found[4]), std::stoull(found[5]),
          std::stoull(found[6])};
}

TEST(CapturedStep, AKilledRankIsNamed) {
  TINYSHARD_NEED_DEVICES(2);
  const bool cpu = device_kind() == "CPU";
  const int tries = cpu && std::getenv("FAULT_TRIES") ? std::atoi(std::getenv("FAULT_TRIES"))
                    : cpu                             ? 6
                                                      : 20;
  std::mt19937 random(std::random_device{}());
  const auto folder =
      std::filesystem::temp_directory_path() / ("step_fault_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::map<uint64_t, std::string> calls;  // that were named, by number: the same in all tries
  for (int i = 0; i < tries; ++i) {
    SCOPED_TRACE("try " + std::to_string(i));
    const int victim = i % 2, survivor = 1 - victim;
    Job job(2, TINYSHARD_STEP_RANK, {folder.string()});
    ASSERT_TRUE(job.read_ready(2)) << job.output();
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + random() % 30000));
    const auto killed = Clock::now();
    kill(job.pids[victim], SIGKILL);
    EXPECT_NE(job.finish(), -1) << "hangs\n" << job.output();
    ASSERT_TRUE(job.reports.contains(survivor)) << "nothing was said\n" << job.output();
    const Report& report = job.reports[survivor];
    EXPECT_EQ(report.peer, victim) << report.text;
    EXPECT_NE(report.text.find("has ended"), std::string::npos) << report.text;
    EXPECT_LT(std::chrono::duration<double>(report.at - killed).count(), 1) << report.text;
    EXPECT_GE(report.again_ms, 0) << "the next step did not fail";
    EXPECT_LT(report.again_ms, 100) << "the next step failed late";
    if (!cpu) continue;
    // The item that the survivor waited for had begun and was not completed. The victim was in that
    // run, too, at its end perhaps, or on its way there.
    const Named named = named_by(report.text);
    const uint64_t begun = last_begun(folder, survivor), by_victim = last_begun(folder, victim);
    EXPECT_EQ(named.run, begun >> 16) << report.text;
    EXPECT_LE(named.item, begun & 0xffff) << report.text;
    EXPECT_TRUE(named.done_run + 1 == named.run || named.done_run == named.run) << report.text;
    EXPECT_NE(std::pair(named.done_run, named.done_item), std::pair(named.run, named.item));
    EXPECT_LE(std::max(by_victim >> 16, named.run) - std::min(by_victim >> 16, named.run), 1u)
        << report.text;
    EXPECT_EQ(calls.try_emplace(named.item, named.call).first->second, named.call) << report.text;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tinyshard::test
