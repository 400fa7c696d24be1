#include "core/base/log.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard {
namespace {

TEST(Log, GoesToTheSink) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  log_line("one");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) log_line("more");
    });
  }
  for (std::thread& t : threads) t.join();
  set_log_sink(nullptr);
  ASSERT_EQ(lines.size(), 401u);
  EXPECT_EQ(lines[0], "one");
}

TEST(Log, WritesToStderrWithTheRank) {
  testing::internal::CaptureStderr();
  log_line("alone");
  set_log_rank(3);
  log_line("among many");
  set_log_rank(-1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "alone\n[3] among many\n");
}

}  // namespace
}  // namespace tinyshard
