// A rank is killed in the middle of a captured step, again and again: the other one is told by a
// CommError that names it, before mpirun ends the job.
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/fault/transport/job.h"

namespace tinyshard::testing {
namespace {

TEST(CapturedStep, AKilledRankIsNamed) {
  TINYSHARD_NEED_DEVICES(2);
  const int tries = device_kind() == "CPU" ? 4 : 20;
  for (int i = 0; i < tries; ++i) {
    SCOPED_TRACE("try " + std::to_string(i));
    const int victim = i % 2, survivor = 1 - victim;
    Job job(2, TINYSHARD_STEP_RANK, {});
    ASSERT_TRUE(job.read_ready(2)) << job.output();
    std::this_thread::sleep_for(milliseconds(20 + 3 * i));
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
  }
}

}  // namespace
}  // namespace tinyshard::testing
