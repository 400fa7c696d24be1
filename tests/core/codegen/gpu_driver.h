// The few calls of the CUDA driver that run a kernel, found at run time; for tests of
// generated code alone. Every failure throws std::runtime_error with the driver's words.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/runtime/target.h"

namespace tinyshard::test {

using DevicePointer = unsigned long long;

class GpuDriver {
 public:
  // Null, with the reason, where there is no GPU.
  static GpuDriver* open(std::string& reason);

  const Target& target() const { return target_; }
  DevicePointer allocate(size_t bytes);
  void release(DevicePointer memory);
  void to_device(DevicePointer to, const void* from, size_t bytes);
  void from_device(void* to, DevicePointer from, size_t bytes);
  void* load(const ObjectCode& code, void** module = nullptr);  // a function
  void unload(void* module);
  // On the stream; coordinates follow the buffers.
  void launch(void* function, const ObjectCode& code, std::span<const DevicePointer> buffers,
              std::span<const int64_t> coordinates = {});
  void synchronize();

 private:
  void check(int result, const char* call);
  Target target_;
  void *stream_ = nullptr, *context_ = nullptr;
};

}  // namespace tinyshard::test
