// A job as `tinyshard run` sees it: an agent on each host (rank_group.h), what the ranks print, who
// failed first, and the end of all of them.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch/hosts.h"
#include "launch/output_queue.h"

namespace tinyshard {

struct JobOptions {
  std::vector<std::string> command;
  std::vector<Host> hosts;               // placed: every rank of these
  std::vector<std::string> environment;  // "NAME=value" of every rank
  std::string agent;                     // the program that serves a group as "<agent> agent"
  std::string remote_shell = "ssh -o BatchMode=yes";  // words; host and command follow
  std::string folder;                                 // of the ranks
  std::string log_folder;         // for the logs of the ranks (job_logs.h); empty: none
  OutputQueue* output = nullptr;  // for what they print; needed
  int attempt = 0;                // how often the job was started before
  // For ranks to end in when they are asked to, unless their programs ask for more
  // (expect_termination).
  std::chrono::milliseconds grace{600};
  int least_ranks = 0;  // the job goes on without those that fail while so many are left; 0: all
  // With least_ranks: for one that fails another is started, with a number of its own, while fewer
  // than these are there. 0: none is.
  int most_ranks = 0;
  bool bind_cores = true, prefix = true, color = false;
  std::function<void(int rank, const std::string& why)> on_end = {};  // a rank is no more
  std::function<void()> on_done = {};  // the first that ended well: nobody joins any more
  std::function<bool(int rank)> has_joined = {};  // of a rank that was started later
};

struct JobResult {
  // For exit(): 128 + the signal by which the job was told to end, else the first culprit's status,
  // 128 + its signal.
  int status = 0;
  bool interrupted = false;  // it was told to end: the launcher, an agent, or one rank
  std::string summary;       // empty where all ended well; of lost ranks where the others did
};

// Runs the job to its end. The first SIGINT, SIGTERM or SIGHUP, to this process, an agent or a rank,
// asks the ranks to end and kills them when the grace is over; the second one kills at once. SIGUSR1,
// SIGUSR2 and SIGXCPU are handed on. Signals that are ignored stay so. After the first failure the
// others have two seconds to say what they know, then two to end when asked, then they are killed.
// Standard input goes to rank 0. Once per process at a time.
JobResult run_job(const JobOptions& options);

}  // namespace tinyshard
