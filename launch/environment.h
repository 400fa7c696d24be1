// The environment contract: which launcher started this process, and as which of how many.
// The first contract that is present wins, so mpirun inside a Slurm allocation is mpirun's job:
//   Own      TS_RANK, TS_WORLD_SIZE, TS_LOCAL_*, TS_STORE, TS_NEWCOMERS   tinyshard run
//   OpenMpi  OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}   mpirun
//   Pmix     PMIX_RANK, and Slurm's sizes                        srun --mpi=pmix
//   Slurm    SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS  srun
//   Rank     RANK, WORLD_SIZE (LOCAL_RANK, LOCAL_WORLD_SIZE)     torchrun and the like
// Slurm's counts only with SLURM_STEP_ID: a batch script sees the rest without being a task, and so
// does what runs in an interactive step.
// None of them: one process alone. Reads the environment and nothing else; safe at any time.
//
// tinyshard run takes these variables from its ranks (launch_variables) and gives them its own. So
// where TS_* and another contract are there and say different things, the other launcher was started
// by a rank, and its ranks would take each other's places: UserError.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

enum class Launcher { None, OpenMpi, Pmix, Slurm, Rank, Own };
std::string_view name(Launcher launcher);  // "mpirun", "srun --mpi=pmix", ...

// Where ranks that talk by TCP find each other: a store of a few small values.
//   Own    TS_STORE: the launcher's, "host:port", or a folder that all ranks see, "file:/path"
//   Slurm  at rank 0, on the first host of SLURM_STEP_NODELIST, with a port from the step's number
//   Rank   at rank 0, MASTER_ADDR:MASTER_PORT; next to that port where torchrun holds it itself
//   OpenMpi  where ranks talk by TCP, and all are of one host: a folder that mpirun removes
// TS_STORE, where it is set, comes before what another launcher says; at "host:port" rank 0 serves it.
struct Meeting {
  std::string store;           // "host:port" or "file:/path"; empty: not said
  bool at_first_rank = false;  // rank 0 serves the store
  std::string job;             // its name, the same on all ranks
  uint32_t epoch = 0;          // how often the job was started again
  std::string bind;            // TS_BIND: address of this rank's own sockets, empty: as the store's
};

struct LaunchEnvironment {
  Launcher launcher = Launcher::None;
  int rank = 0, size = 1;  // of the job
  // Places on this host, where the launcher says; else as if every rank had its own.
  int local_rank = 0, local_size = 1;
  Meeting meeting;  // where this is said; see check_meeting
  // Set for a job that went on without some of its ranks (transport/reform.h): how often it did, and
  // the number that the launcher gave to each of those that are left, ascending. Rank and size above
  // are then those among them.
  uint32_t formation = 0;
  std::vector<int> members = {};
  // Processes that the launcher starts later, in the place of those that were lost, have numbers from
  // this one on (TS_NEWCOMERS); 0: it starts none. Such a rank joins a formation of the others.
  int newcomers_from = 0;

  // Started later, and in no formation yet.
  bool is_to_join() const {
    return newcomers_from > 0 && members.empty() && rank >= newcomers_from;
  }

  // The number by which the launcher knows a rank, and the rank of such a number, -1: left out.
  int launched_as(int rank_now) const;
  int rank_now(int launched) const;
  // Differs between any two starts and formations of a job.
  uint32_t wire_epoch() const { return meeting.epoch + (formation << 16); }
};

// The variables that place a process in a job, ours and those of other launchers.
std::span<const std::string_view> launch_variables();

// The first host of Slurm's list, "node[01-03,07],other": "node01".
std::string first_host(std::string_view list);

// UserError naming what is missing where the launcher does not say how ranks meet without MPI.
void check_meeting(const LaunchEnvironment& launch);

// Throws UserError naming the variables where they are incomplete, unreadable or contradict each
// other.
using EnvironmentLookup = std::function<const char*(const char*)>;
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup);
LaunchEnvironment read_launch_environment();  // of this process

}  // namespace tinyshard
