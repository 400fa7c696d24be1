// GPU tests: skipped, with the reason, where there is no GPU.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "devices/cuda/cuda_device.h"

namespace tinyshard::test {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() == 0) GTEST_SKIP() << describe_cuda();
    gpu = make_cuda_device(0);
  }
  std::unique_ptr<Device> gpu;
};

// A typed block of device memory.
template <class T>
class OnGpu {
 public:
  OnGpu(Device& device, size_t count)
      : device_(device), count_(count), memory_(device.allocate(count * sizeof(T))) {}
  OnGpu(Device& device, const std::vector<T>& values) : OnGpu(device, values.size()) {
    set(values);
  }
  ~OnGpu() { device_.free(memory_, count_ * sizeof(T)); }
  OnGpu(const OnGpu&) = delete;

  void* get() const { return memory_; }
  void set(const std::vector<T>& values) {
    device_.copy_in(memory_, values.data(), values.size() * sizeof(T));
  }
  std::vector<T> values() const {
    std::vector<T> host(count_);
    device_.copy_out(host.data(), memory_, count_ * sizeof(T));
    return host;
  }

 private:
  Device& device_;
  size_t count_;
  void* memory_;
};

}  // namespace tinyshard::test
