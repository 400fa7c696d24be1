// Signals that have to wait.
#pragma once
#include <csignal>

namespace tinyshard {

// While it lives, signals that others send to this thread wait, and threads that it starts have them
// wait for good; those that a thread raises itself (SIGSEGV, SIGFPE, ...) come at once. What is sent
// to the process goes to another thread, where one takes it. Takes two system calls.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_;
};

// While it lives, a file that would grow beyond the limit on sizes (ulimit -f) is an error of the call,
// EFBIG, as a full disk is. Left alone, the signal SIGXFSZ that comes with it ends the process. It
// is for this thread only: how the program itself handles the signal stays as it is.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal();
  ~NoFileSizeSignal();
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t only_, before_;
  bool was_pending_ = false;
};

}  // namespace tinyshard
