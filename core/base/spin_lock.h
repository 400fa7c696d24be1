// A lock for what takes some hundred nanoseconds and seldom meets another thread, such as making a
// node: half of what a mutex takes. Whoever waits lets others run, its holder among them.
#pragma once
#include <atomic>
#include <thread>

namespace tinyshard {

class SpinLock {
 public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) {
      while (taken_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace tinyshard
