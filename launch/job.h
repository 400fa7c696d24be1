// A job as `tinyshard run` sees it: an agent on each host (rank_group.h), what the ranks print, who
// failed first, and the end of all of them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch/hosts.h"

namespace tinyshard {

struct JobOptions {
  std::vector<std::string> command;
  std::vector<Host> hosts;               // placed: every rank of these
  std::vector<std::string> environment;  // "NAME=value" of every rank
  std::string agent;                     // the program that serves a group as "<agent> agent"
  std::string remote_shell = "ssh -o BatchMode=yes";  // words; host and command follow
  std::string folder;                                 // of the ranks
  std::string log_folder;                             // for rank-0.log, ...; empty: none
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
  int status = 0;  // for exit(): the first culprit's, 128 + its signal
  bool interrupted = false;
  std::string summary;  // empty where all ended well; of lost ranks where the others did
};

// Runs the job to its end. The first SIGINT, SIGTERM or SIGHUP asks the ranks to end, the second
// kills them. After the first failure the others have a second to say what they know, then two to
// end when asked, then they are killed. Once per process at a time.
JobResult run_job(const JobOptions& options);

}  // namespace tinyshard
