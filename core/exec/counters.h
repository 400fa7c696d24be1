// Counters of what runs in this process from reset() on; nothing is counted before the first one:
//
//   GlobalCounters::reset();
//   step(x);
//   GlobalCounters ran = GlobalCounters::now();     // ran.kernels, ran.bytes, ran.devices[0].operations
//
// Work is counted as plans know it (plan_summary.h): bytes of distinct elements that are read and
// written, arithmetic; of sizes that are known when a captured step runs, the largest. Threads: any.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "multi/mesh.h"

namespace tinyshard {

// On one device. A kernel that runs on two devices counts on each.
struct DeviceCounters {
  DeviceRef device;
  int64_t kernels = 0, library_calls = 0, collectives = 0, copies = 0;
  double operations = 0;
  int64_t bytes = 0;                    // read and written
  int64_t memory = 0, peak_memory = 0;  // bytes that it holds now, and held at most; not reset
};

struct GlobalCounters {
  // Each once, on however many devices it runs.
  int64_t kernels = 0, library_calls = 0, collectives = 0, copies = 0;
  int64_t runs = 0;  // of plans: of tensors that were computed, and of captured steps
  // Sums over the devices.
  double operations = 0;
  int64_t bytes = 0, memory = 0;
  // The host's time in runs: until they have ended, or on a GPU until they are queued. With DEBUG=2 each
  // item is waited for, on GPUs as well.
  double seconds = 0;
  std::vector<DeviceCounters> devices;  // those that did something, and those of this process

  static GlobalCounters now();
  static void reset();
};

}  // namespace tinyshard
