// Signals in the middle of what is tested.
#pragma once
#include <atomic>
#include <csignal>
#include <sys/time.h>

namespace tinyshard::test {

// While it lives, the process gets SIGALRM every 200 us and counts them in a handler, which runs on
// the stack of the thread that it interrupts.
class Alarms {
 public:
  Alarms() {
    struct sigaction action{};
    action.sa_handler = [](int) { counted.fetch_add(1, std::memory_order_relaxed); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, &before_);
    set(200);
  }
  ~Alarms() {
    set(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

  int count() const { return counted.load(std::memory_order_relaxed); }

 private:
  static void set(int us) {
    const itimerval timer{{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &timer, nullptr);
  }

  static inline std::atomic<int> counted{0};
  struct sigaction before_;
};

}  // namespace tinyshard::test
