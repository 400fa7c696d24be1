// Work that was queued and has not run yet. A piece runs when all that it waits for is done; among those that could, the
// next is drawn from a seed, so that an order which nothing demands is not relied upon. Not thread-safe: the runtime's
// lock is held.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace amdgpu_emulator {

struct Task;

// Becomes done once.
struct Signal {
  bool done = false;
  std::chrono::steady_clock::time_point when;
  std::vector<Task*> waiters;
};

struct Task {
  std::function<void()> work;
  std::shared_ptr<Signal> finished = std::make_shared<Signal>();
  int missing = 0;
};

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random_(seed) {}
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns the signal of the task's end.
  std::shared_ptr<Signal> add(std::function<void()> work,
                              const std::vector<std::shared_ptr<Signal>>& waits);
  // Runs one task; false where none can run. An exception of its work passes through; the task counts as done.
  bool run_one();
  // Marks all that is queued as done without running it.
  void drop();

 private:
  void finish(Task* task);

  std::mt19937_64 random_;
  std::vector<Task*> ready_;
  std::vector<Task*> all_;
};

}  // namespace amdgpu_emulator
