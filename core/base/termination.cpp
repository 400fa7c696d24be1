// A timer is started by the first signal and raises SIGTERM when the time is over; the handler tells
// it from others by its si_code. A child of a fork has no timer and no time: signals end it. Example:
// `timeout -s TERM 60 ./train` sends SIGTERM to the program, and again to its group a moment later.
// The second one comes within a second and counts as the first; the checkpoint is saved.
#include "core/base/termination.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <initializer_list>
#include <mutex>
#include <unistd.h>

#include <fmt/format.h>

namespace tinyshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kLastWords{300};     // of a program that asked for no time
constexpr milliseconds kSameRequest{1000};  // signals so close together are one wish

std::atomic<int> came{0};  // the first signal
std::atomic<int64_t> came_at_ns{0};
std::atomic<int64_t> grace_ns{0};  // 0: none was asked for
std::atomic<int> report{-1};
std::atomic<pid_t> owner{0};  // the process that has the timer
timer_t timer;
std::mutex setting_up;

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Ends this process as the signal does where nobody handles it.
void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
}

// "T 15 4711\n", with calls that a handler may make.
void report_signal(int signal) {
  const int to = report.load();
  if (to < 0) return;
  char line[48];
  char* at = line + sizeof(line);
  *--at = '\n';
  const auto put = [&](int64_t number) {
    do *--at = char('0' + number % 10);
    while ((number /= 10) > 0);
  };
  put(getpid());
  *--at = ' ';
  put(signal);
  *--at = ' ';
  *--at = 'T';
  if (write(to, at, size_t(line + sizeof(line) - at)) < 0) return;
}

void on_signal(int signal, siginfo_t* info, void*) {
  const int before = errno;
  int first = 0;
  if (owner.load() != getpid()) {
    end_by(signal);
  } else if (info->si_code == SI_TIMER) {
    end_by(came.load());
  } else if (came.compare_exchange_strong(first, signal)) {
    came_at_ns = now_ns();
    const int64_t left = grace_ns > 0 ? grace_ns.load() : nanoseconds(kLastWords).count();
    itimerspec until{};
    until.it_value = {.tv_sec = time_t(left / 1'000'000'000), .tv_nsec = left % 1'000'000'000};
    report_signal(signal);
    if (timer_settime(timer, 0, &until, nullptr) != 0) end_by(signal);
  } else if (now_ns() - came_at_ns > nanoseconds(kSameRequest).count()) {
    end_by(signal);
  }
  errno = before;
}

bool make_timer() {
  if (owner == getpid()) return true;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return false;
  came = 0;  // of the parent of a fork
  owner = getpid();
  return true;
}

void take(std::initializer_list<int> signals) {
  if (!make_timer()) return;
  for (int signal : signals) {
    struct sigaction now{};
    if (sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL)
      continue;
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void expect_termination(milliseconds grace) {
  const std::lock_guard lock(setting_up);
  grace_ns = nanoseconds(std::max(grace, milliseconds(1))).count();
  take({SIGTERM, SIGINT, SIGHUP});
  const std::string line = fmt::format("G {}\n", grace.count());
  if (report >= 0 && write(report, line.data(), line.size()) < 0) return;
}

bool termination_requested() { return came != 0; }

int termination_status() { return came == 0 ? 0 : 128 + came; }

void watch_for_termination() {
  const std::lock_guard lock(setting_up);
  take({SIGTERM});
}

bool terminated() { return came != 0 && grace_ns == 0; }

void report_termination_to(int pipe) { report = pipe; }

}  // namespace tinyshard
