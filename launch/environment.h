// The environment contract: which launcher started this process, and as which of how many.
// The first contract that is present wins, so mpirun inside a Slurm allocation is mpirun's job:
//   OpenMpi  OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}   mpirun
//   Pmix     PMIX_RANK, and Slurm's sizes                        srun --mpi=pmix
//   Slurm    SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS  srun
//   Rank     RANK, WORLD_SIZE (LOCAL_RANK, LOCAL_WORLD_SIZE)     torchrun and the like
// Slurm's counts only with SLURM_STEP_ID: a batch script sees the rest without being a task.
// None of them: one process alone. Reads the environment and nothing else; safe at any time.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace tinyshard {

enum class Launcher { None, OpenMpi, Pmix, Slurm, Rank };
std::string_view name(Launcher launcher);  // "mpirun", "srun --mpi=pmix", ...

struct LaunchEnvironment {
  Launcher launcher = Launcher::None;
  int rank = 0, size = 1;  // of the job
  int local_rank = 0,
      local_size = 1;  // of this host, where the launcher says; else as if every rank had its own
};

// Throws UserError naming the variables where they are incomplete, unreadable or contradict each
// other.
using EnvironmentLookup = std::function<const char*(const char*)>;
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup);
LaunchEnvironment read_launch_environment();  // of this process

}  // namespace tinyshard
