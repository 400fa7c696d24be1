// Times what devices are told to do, without the time it takes to tell them: where devices record,
// the work is recorded once and replayed, often enough that the ends do not count.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "core/exec/context.h"
#include "core/exec/state.h"
#include "core/runtime/device.h"

namespace tinyshard::bench {

// The one device of a benchmark, by name; empty: the best there is.
inline Device& open_device(const std::string& name) {
  RuntimeOptions options;
  if (!name.empty()) options.devices = {name};
  Runtime::configure(options);
  return Context::get().device(default_mesh().devices().at(0));
}

class Recorded {
 public:
  Recorded(std::vector<Device*> devices, std::function<void()> work)
      : devices_(std::move(devices)), work_(std::move(work)) {
    for (Device* device : devices_) ends_.push_back(device->make_event());
    work_();  // what happens at the first call only does not count
    finish();
    if (!devices_[0]->can_record()) return;
    for (Device* device : devices_) device->begin_recording();
    work_();
    for (Device* device : devices_) recordings_.push_back(device->end_recording());
    time(1);
  }

  // Microseconds of one run, the mean of `runs` in a row.
  double time(int runs) {
    auto start = Clock::now();
    for (int i = 0; i < runs; ++i) {
      if (recordings_.empty()) work_();
      for (auto& recording : recordings_) recording->launch();
    }
    finish();
    return us_since(start) / runs;
  }

  // Such means, each of at least `least_us` in all.
  std::vector<double> times(int samples, double least_us = 2e4) {
    int runs = int(std::ceil(std::max(1.0, least_us / time(1))));
    std::vector<double> us;
    for (int i = 0; i < samples; ++i) us.push_back(time(runs));
    return us;
  }

 private:
  // A device's own wait sleeps between looks; this one notices the end at once, unless it is far.
  void finish() {
    constexpr double kFar = 1e6;
    auto start = Clock::now();
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (!ends_[i]) continue;
      devices_[i]->record(*ends_[i], Queue::Compute);
      while (!devices_[i]->reached(*ends_[i]) && us_since(start) < kFar) {
      }
    }
    for (Device* device : devices_) device->synchronize();
  }

  std::vector<Device*> devices_;
  std::function<void()> work_;
  std::vector<std::unique_ptr<Event>> ends_;
  std::vector<std::unique_ptr<Recording>> recordings_;
};

}  // namespace tinyshard::bench
