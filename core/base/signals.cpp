// Signals that a fault raises in the thread itself stay unblocked: a
// fault while they are blocked ends the process without its handler.
#include "core/base/signals.h"

#include <cerrno>
#include <ctime>
#include <initializer_list>

namespace tinyshard {

HeldSignals::HeldSignals() {
  static const sigset_t others = [] {
    sigset_t set;
    ::sigfillset(&set);
    for (int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP})
      ::sigdelset(&set, own);
    return set;
  }();
  ::pthread_sigmask(SIG_BLOCK, &others, &before_);
}

HeldSignals::~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

NoFileSizeSignal::NoFileSizeSignal() {
  sigset_t pending;
  sigemptyset(&only_);
  sigaddset(&only_, SIGXFSZ);
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &only_, &before_);
}

NoFileSizeSignal::~NoFileSizeSignal() {
  const int error_number = errno;
  const timespec now{};
  if (!was_pending_) sigtimedwait(&only_, nullptr, &now);  // the one that our call raised
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error_number;
}

}  // namespace tinyshard
