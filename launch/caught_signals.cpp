// The handler writes the signal's number to a pipe and does nothing else.
// Signals that were ignored when the launcher started, as under nohup,
// stay ignored, all but SIGCHLD. A child gets back what was before.
#include "launch/caught_signals.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

int wake_end = -1;  // of the pipe that the handler writes to

void on_caught(int signal) {
  const int before = errno;
  const char number = char(signal);
  if (write(wake_end, &number, 1) < 0) errno = before;
  errno = before;
}

}  // namespace

CaughtSignals::CaughtSignals(std::initializer_list<int> signals) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw UserError(fmt::format("pipe: {}", std::strerror(errno)));
  read_end_ = ends[0];
  wake_end = ends[1];
  const auto set = [&](int signal, void (*handler)(int)) {
    Before& before = before_.emplace_back(Before{signal, {}});
    sigaction(signal, nullptr, &before.action);
    if (was_ignored(signal) && signal != SIGCHLD) return;
    struct sigaction action{};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  };
  for (int signal : signals) set(signal, on_caught);
  set(SIGPIPE, SIG_IGN);
  set(SIGXFSZ, SIG_IGN);
}

CaughtSignals::~CaughtSignals() {
  for (const Before& before : before_) sigaction(before.signal, &before.action, nullptr);
  close(read_end_);
  close(wake_end);
}

bool CaughtSignals::was_ignored(int signal) const {
  const auto found = std::ranges::find(before_, signal, &Before::signal);
  return found != before_.end() && (found->action.sa_flags & SA_SIGINFO) == 0 &&
         found->action.sa_handler == SIG_IGN;
}

int CaughtSignals::next() const {
  char number = 0;
  return read(read_end_, &number, 1) == 1 ? number : 0;
}

void CaughtSignals::restore_in_child() const {
  for (const Before& before : before_) {
    if (before.signal == SIGCHLD) {
      std::signal(SIGCHLD, SIG_DFL);
    } else {
      sigaction(before.signal, &before.action, nullptr);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace tinyshard
