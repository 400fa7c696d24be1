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

}  // namespace tinyshard
