// The repetitions become one graph between two events, so the time
// is the GPU's alone, without launches.
#include "devices/gpu/timed_work.h"

namespace tinyshard::gpu {
namespace {

constexpr int kCaptureRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

}  // namespace

TimedWork::TimedWork(Gpu& gpu, int repeat, const std::function<void()>& enqueue)
    : gpu_(gpu), repeat_(repeat) {
  const Driver& driver = gpu.driver();
  Stream stream = gpu.stream(Queue::Compute);
  gpu.check(driver.begin_capture(stream, kCaptureRelaxed), "recording work to be timed");
  try {
    for (int i = 0; i < repeat; ++i) enqueue();
  } catch (...) {
    driver.end_capture(stream, &graph_);
    close();
    throw;
  }
  try {
    gpu.check(driver.end_capture(stream, &graph_), "recording work to be timed");
    gpu.check(driver.graph_instantiate(&exec_, graph_, 0), "making a graph of work to be timed");
    for (EventHandle* e : {&start_, &end_}) gpu.check(driver.event_create(e, 0), "an event");
  } catch (...) {
    close();
    throw;
  }
}

TimedWork::~TimedWork() { close(); }

void TimedWork::close() noexcept {
  const Driver& driver = gpu_.driver();
  for (EventHandle e : {start_, end_}) {
    if (e) driver.event_destroy(e);
  }
  if (exec_) driver.graph_exec_destroy(exec_);
  if (graph_) driver.graph_destroy(graph_);
}

float TimedWork::run() {
  const Driver& driver = gpu_.driver();
  Stream stream = gpu_.stream(Queue::Compute);
  gpu_.check(driver.event_record(start_, stream), "recording an event");
  gpu_.check(driver.graph_launch(exec_, stream), "launching a graph");
  gpu_.check(driver.event_record(end_, stream), "recording an event");
  gpu_.wait_on_host(end_);
  float ms = 0;
  gpu_.check(driver.event_elapsed(&ms, start_, end_), "timing");
  return ms / float(repeat_);
}

}  // namespace tinyshard::gpu
