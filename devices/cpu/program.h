// Kernels on the CPU: an image in executable memory, run on the thread pool.
#pragma once
#include <string>

#include "core/runtime/device.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {

// The machine this process runs on, as the code generator wants it. Found once.
const Target& host_target();
const DeviceProfile& host_profile();  // the figures that plans for it are made by

class CpuProgram : public Program {
 public:
  // Throws DeviceError when the image is not one, or when memory cannot be made executable.
  CpuProgram(const ObjectCode& code, ThreadPool& pool);
  ~CpuProgram() override;
  CpuProgram(const CpuProgram&) = delete;

  void launch(void* const* buffers, const int64_t* coordinates) override;
  std::string describe() const override;

  // The work items [begin, end), by the calling thread. Both throw InternalError for an access
  // outside of its buffer, which code that was made with TS_CHECK=memory finds.
  void run(void* const* buffers, const int64_t* coordinates, int64_t begin, int64_t end) const;
  int64_t work_items() const { return work_items_; }

 private:
  using Entry = void (*)(void* const*, const int64_t*, int64_t, int64_t);
  std::string name_;
  // Calls work(buffers). Behind the buffers of checked code it puts an AccessFault, and throws
  // InternalError if the code finds a fault.
  template <class Work>
  void checking(void* const* buffers, Work&& work) const;

  int64_t work_items_, min_items_;
  int checked_buffers_;
  ThreadPool& pool_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  Entry entry_ = nullptr;
};

}  // namespace tinyshard
