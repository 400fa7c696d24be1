// Signals that a fault raises in the thread itself stay unblocked: a
// fault while they are blocked ends the process without its handler.
#include "core/base/signals.h"

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

}  // namespace tinyshard
