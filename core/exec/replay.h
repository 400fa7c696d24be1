// The recordings of one executable, one per device: what a run did, launched as a whole. They are
// made at the first use, patched where the pointers of single launches change, and made again where
// that is not possible.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

class Replay {
 public:
  static constexpr size_t kFewestItems = 3;  // fewer are launched one by one in the same time

  // Runs what `items` does on the devices. It is called, with the devices recording, only when
  // there is no recording yet.
  void run(std::span<Device* const> devices, const std::function<void()>& items);
  // The list of pointers of a launch has changed.
  void changed(void** list);
  // The next run records again.
  void reset() { recordings_.clear(); }

 private:
  void record(std::span<Device* const> devices, const std::function<void()>& items);
  bool update();

  std::vector<std::unique_ptr<Recording>> recordings_;  // by device
  std::vector<void* const*> changed_;
};

}  // namespace tinyshard
