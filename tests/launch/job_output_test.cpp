// Parts of lines, as they come out of the launcher's stdout.
#include "launch/job_output.h"

#include <cstdio>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tinyshard::job_output_test {
namespace {

// Returns what `print` has the output write to stdout.
template <class Print>
std::string printed(bool prefix, Print print) {
  std::fflush(stdout);
  int ends[2];
  if (pipe(ends) != 0) return {};
  const int before = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  {
    OutputQueue queue;
    JobOutput output(queue, prefix, false);
    print(output);
    EXPECT_TRUE(queue.drain(std::chrono::seconds(10)));
  }
  dup2(before, STDOUT_FILENO);
  close(before);
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, size_t(n));
  close(ends[0]);
  return text;
}

TEST(JobOutput, ALineThatAnotherRankInterruptsGoesOnBelow) {
  const auto print = [](JobOutput& output) {
    output.print(0, "half ", false, false);
    output.print(0, "and half", false, true);
    output.print(0, "begun", false, false);
    output.print(1, "hello", false, true);
    output.print(0, " goes on", false, false);
    output.end_rank(1);
    output.end_rank(0);
  };
  EXPECT_EQ(printed(true, print), "[0] half and half\n[0] begun\n[1] hello\n[0]  goes on\n");
  EXPECT_EQ(printed(false, print), "half and half\nbegun\nhello\n goes on\n");
}

TEST(JobOutput, ABarThatIsDrawnAgainKeepsItsNumber) {
  EXPECT_EQ(printed(true,
                    [](JobOutput& output) {
                      output.print(3, "\r10", false, false);
                      output.print(3, "\r20\r", false, true);
                    }),
            "[3] \r[3] 10\r[3] 20\r\n");
}

TEST(JobOutput, BytesOfOneRankStayAsTheyAre) {
  EXPECT_EQ(printed(false,
                    [](JobOutput& output) {
                      output.print(0, std::string("a\0\r", 3), false, false);
                      output.print(0, "b", false, true);
                    }),
            std::string("a\0\rb\n", 5));
}

}  // namespace
}  // namespace tinyshard::job_output_test
