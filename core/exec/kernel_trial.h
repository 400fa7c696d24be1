// Kernels that are timed apart from a plan: their memory, launches in a row, and a bound of their time
// that costs little however slow they are. BEAM's (tune.h, providers.h).
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/codegen/kernel.h"
#include "core/runtime/device.h"

namespace tinyshard {

// The arguments of a kernel's launches: buffers, zeroed, and coordinates. The constructor throws
// DeviceError where the buffers do not fit beside what is held.
class TrialBuffers {
 public:
  TrialBuffers(Device& device, const KernelSource& source);
  void* const* get() const { return arguments_.data(); }
  const int64_t* coordinates() const { return coordinates_.data(); }

 private:
  struct Free {
    Device* device;
    size_t bytes;
    void operator()(void* memory) const { device->free(memory, bytes); }
  };
  std::vector<std::unique_ptr<void, Free>> owned_;
  std::vector<void*> arguments_;  // by slot
  std::vector<int64_t> coordinates_;
};

// Some launches in a row: recorded where the device can, so that what the host does for them does not
// count.
class Repeated {
 public:
  Repeated(Device& device, int repetitions, std::function<void()> launch, bool record = true);
  double seconds_of_one();

 private:
  Device& device_;
  int repetitions_;
  std::function<void()> launch_;
  std::unique_ptr<Recording> recording_;
};

void fill_with_zeros(Device& device, void* memory, size_t bytes);
void launch_trial(Program& program, const TrialBuffers& buffers);

// The seconds of a launch of the kernel; of one that takes longer than `enough`, a time above that.
// Such a kernel is never launched as a whole: it is known by its first work items.
double seconds_up_to(double enough, Device& device, const ObjectCode& code,
                     const TrialBuffers& buffers);

}  // namespace tinyshard
