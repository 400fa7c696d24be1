// How long work takes on a GPU: recorded some times over, so that what the host does for a launch
// does not count.
#pragma once
#include <functional>

#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {

class TimedWork {
 public:
  // Calls `enqueue` `repeat` times; it puts the work on the compute queue.
  TimedWork(Gpu& gpu, int repeat, const std::function<void()>& enqueue);
  ~TimedWork();
  TimedWork(const TimedWork&) = delete;

  // Runs it, waits, and returns the milliseconds of one repetition.
  float run();

 private:
  void close() noexcept;

  Gpu& gpu_;
  int repeat_;
  Graph graph_ = nullptr;
  GraphExec exec_ = nullptr;
  EventHandle start_ = nullptr, end_ = nullptr;
};

}  // namespace tinyshard::gpu
