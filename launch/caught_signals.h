// Signals as bytes of a pipe, for a loop that polls.
#pragma once
#include <csignal>
#include <initializer_list>
#include <vector>

namespace tinyshard {

// Once per process at a time. Signals that were ignored before stay ignored (nohup, jobs in the
// background), but for SIGCHLD: where that is ignored, statuses of children are lost. SIGPIPE is
// ignored: a write says that nobody reads; SIGXFSZ, too: a write says that a file grows no more.
class CaughtSignals {
 public:
  explicit CaughtSignals(std::initializer_list<int> signals);
  ~CaughtSignals();  // as they were before
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  int fd() const { return read_end_; }
  int next() const;                    // 0: none
  bool was_ignored(int signal) const;  // before; of a caught one and of SIGPIPE

  // In a child, before it becomes another program: nothing is caught, and nothing ignored or held
  // back that was not before. (exec resets handlers only.)
  void restore_in_child() const;

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };
  int read_end_ = -1;
  std::vector<Before> before_;
};

}  // namespace tinyshard
