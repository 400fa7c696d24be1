// The processes of this job on this host, as the process table shows them: who died or was stopped
// before the ranks could talk to each other. Known where the launcher is tinyshard run
// or speaks PMIx (mpirun, srun --mpi=pmix), which put the job's name and the rank into each
// process's environment. Reads /proc and nothing else; of processes of other users it knows
// nothing. Takes some milliseconds.
#pragma once
#include <string>
#include <vector>

namespace tinyshard {

struct JobProcess {
  int rank = 0;
  int pid = 0;
  bool stopped = false;  // by a signal or a debugger
  bool joining = false;  // has a thread named kJoiningThread
};

// A rank names the thread that waits for the others so: it shows that the rank has come.
inline constexpr const char* kJoiningThread = "ts-joining";

// The living ones, by rank. A rank that was started through a script has two: the script and the
// program. Empty where the launcher is another one.
std::vector<JobProcess> job_processes();

// Which ranks kept `own_rank` waiting, as the end of a sentence: "rank 1 has ended; rank 2 (process
// 4711) is stopped". A rank without a process has ended if it is one of those `expected` here,
// which has an element for each rank. Empty where nothing is known. `culprit` is the first of the
// worst: an ended one, else a stopped one, else one that has not come, else -1.
std::string missing_ranks(const std::vector<JobProcess>& processes, int own_rank,
                          const std::vector<bool>& expected, int* culprit);

}  // namespace tinyshard
