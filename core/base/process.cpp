// Forks and exits are noted by handlers, so that asking costs no system call.
#include "core/base/process.h"

#include <atomic>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

std::atomic<int> forks{0};
std::atomic<bool> exiting{false};

}  // namespace

int times_forked() {
  static const bool counts = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); }) == 0;
  static_cast<void>(counts);
  return forks.load(std::memory_order_relaxed);
}

bool is_main_thread() { return getpid() == gettid(); }

void watch_for_exit() {
  static const bool watches = std::atexit([] { exiting.store(true); }) == 0;
  static_cast<void>(watches);
}

bool is_exiting() { return exiting.load(std::memory_order_relaxed); }

void check_not_exiting(const char* what) {
  if (!is_exiting()) return;
  throw UserError(fmt::format(
      "{} while the process exits: what it takes is gone; destructors of global objects come too "
      "late",
      what));
}

}  // namespace tinyshard
