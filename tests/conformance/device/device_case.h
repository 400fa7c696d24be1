// Cases for every kind of device, and the devices: the CPU, a device that only plans, and a GPU, each
// opened by itself as the engine does. Cases that do not apply are skipped with the reason.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/exec/context.h"

namespace tinyshard::test {

// A device of the kind that is the parameter.
class DeviceCase : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const DeviceKind& kind : builtins().devices) {
      if (kind.name != GetParam()) continue;
      if (kind.count() == 0) GTEST_SKIP() << "no " << kind.name << " here: " << kind.detail();
      device_ = kind.open(0, 1);
    }
    if (!device_ && !IsSkipped()) FAIL() << "no kind of device is named " << GetParam();
  }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_;
};

#define TINYSHARD_NEED_VALUES() \
  if (!device().executes()) GTEST_SKIP() << device().name() << " only plans"

// Memory of a device for the time of a test.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, const std::vector<T>& values) : OnDevice(device, values.size()) {
    set(values);
  }
  OnDevice(Device& device, size_t count)
      : device_(device), count_(count), memory_(device.allocate(count * sizeof(T))) {}
  ~OnDevice() { device_.free(memory_, count_ * sizeof(T)); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* get() const { return memory_; }
  size_t bytes() const { return count_ * sizeof(T); }
  void set(const std::vector<T>& values) { device_.copy_in(memory_, values.data(), bytes()); }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    device_.copy_out(out.data(), memory_, bytes());
    return out;
  }

 private:
  Device& device_;
  size_t count_;
  void* memory_;
};

inline std::string kind_of(const testing::TestParamInfo<const char*>& info) { return info.param; }
#define TINYSHARD_ON_EVERY_DEVICE(suite) \
  INSTANTIATE_TEST_SUITE_P(, suite, testing::Values("CPU", "NULL", "CUDA", "HIP"), kind_of)

}  // namespace tinyshard::test
