// The handler removes itself (SA_RESETHAND), which is what makes the second signal end the process.
#include "launch/termination.h"

#include <atomic>
#include <csignal>

namespace tinyshard {
namespace {

std::atomic<bool> came{false};

void on_terminate(int) { came.store(true, std::memory_order_relaxed); }

}  // namespace

void watch_for_termination() {
  struct sigaction now{};
  if (sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler != SIG_DFL ||
      (now.sa_flags & SA_SIGINFO) != 0)
    return;
  struct sigaction action{};
  action.sa_handler = on_terminate;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGTERM, &action, nullptr);
}

bool terminated() { return came.load(std::memory_order_relaxed); }

}  // namespace tinyshard
