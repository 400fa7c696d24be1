// A process beside the agent of a host that outlives it: when the agent is killed, together with the
// launcher or alone, it kills what the ranks have left.
#pragma once
#include <string>
#include <sys/types.h>

namespace tinyshard {

class Guardian {
 public:
  // Forks; to be called before there are threads. `job` is the variable that all processes of the
  // job began with, "TS_JOB=...". Where it cannot be started, the job goes on without it.
  explicit Guardian(const std::string& job);
  ~Guardian();  // it has nothing to do
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  // Process groups of ranks, which it kills without looking into /proc.
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void tell(pid_t group) const;
  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tinyshard
