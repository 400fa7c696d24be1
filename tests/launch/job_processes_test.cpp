#include "launch/job_processes.h"

#include <cstdlib>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tinyshard::job_processes_test {
namespace {

TEST(JobProcesses, MissingRanksAreNamedWorstFirst) {
  const std::vector<JobProcess> processes = {{.rank = 0, .pid = 10, .joining = true},
                                             {.rank = 2, .pid = 12, .stopped = true},
                                             {.rank = 3, .pid = 13},
                                             {.rank = 4, .pid = 4},  // a script and its program
                                             {.rank = 4, .pid = 14, .joining = true}};
  int culprit = 7;
  EXPECT_EQ(missing_ranks(processes, 0, std::vector<bool>(5, true), &culprit),
            "rank 1 has ended; rank 2 (process 12) is stopped; rank 3 (process 13) runs, but has "
            "not come");
  EXPECT_EQ(culprit, 1);
  // Rank 1 may be on another host.
  EXPECT_EQ(missing_ranks(processes, 0, {true, false, true, false, false}, &culprit),
            "rank 2 (process 12) is stopped; rank 3 (process 13) runs, but has not come");
  EXPECT_EQ(culprit, 2);
}

TEST(JobProcesses, NothingIsSaidWhereNothingIsSeen) {
  int culprit = 7;
  EXPECT_EQ(missing_ranks({}, 0, {true, true}, &culprit), "");
  EXPECT_EQ(culprit, -1);
}

// Alone and under mpirun.
TEST(JobProcesses, OfThisJob) {
  const std::vector<JobProcess> processes = job_processes();
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) return;
  bool found = false;
  for (const JobProcess& p : processes) {
    if (p.pid != getpid()) continue;
    found = true;
    EXPECT_EQ(p.rank, std::atoi(rank));
    EXPECT_FALSE(p.stopped);
    EXPECT_FALSE(p.joining);
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace tinyshard::job_processes_test
