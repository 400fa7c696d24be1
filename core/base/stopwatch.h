#pragma once
#include <chrono>
#include <ctime>

namespace tinyshard {

class Stopwatch {
 public:
  // Since it was made.
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The processor's time, for this thread alone: what others do on a busy machine does not count.
class ProcessorStopwatch {
 public:
  // Since it was made.
  double ms() const { return now() - start_; }

 private:
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * double(t.tv_sec) + 1e-6 * double(t.tv_nsec);
  }
  double start_ = now();
};

}  // namespace tinyshard
