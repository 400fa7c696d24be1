// Programs of a GPU: kernels here, library calls in their own files. All go through Gpu's compute
// stream and can be found again in a recording.
#pragma once
#include <string>
#include <vector>

#include "devices/gpu/driver.h"
#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {

class GpuProgram : public Program {
 public:
  explicit GpuProgram(Gpu& gpu) : gpu_(gpu) {}
  void launch(void* const* buffers, const int64_t* coordinates) final;
  // Puts the work on the compute stream.
  virtual void enqueue(void* const* buffers, const int64_t* coordinates) = 0;
  // The one kernel that `enqueue` launches, with its arguments; they are valid until the next call.
  // False when it launches others, or several.
  virtual bool kernel(void* const* /*buffers*/, const int64_t* /*coordinates*/,
                      KernelNodeParams* /*params*/) {
    return false;
  }
  // True if the code that `enqueue` launches waits, by itself, for the kernels that it depends on:
  // it may then begin before they have ended.
  virtual bool waits_itself() const { return false; }

 protected:
  Gpu& gpu_;
};

class KernelProgram final : public GpuProgram {
 public:
  KernelProgram(Gpu& gpu, const ObjectCode& code);
  ~KernelProgram() override;
  void enqueue(void* const* buffers, const int64_t* coordinates) override;
  bool kernel(void* const* buffers, const int64_t* coordinates, KernelNodeParams* params) override;
  bool waits_itself() const override { return waits_itself_; }
  std::string describe() const override;

 private:
  std::string entry_;
  Module module_ = nullptr;
  Function function_ = nullptr;
  bool waits_itself_ = false;
  unsigned grid_ = 1, block_ = 1, shared_bytes_ = 0;
  size_t buffers_ = 0, coordinates_ = 0;
  std::vector<void*> arguments_;  // pointers to the values, refilled at each launch
};

}  // namespace tinyshard::gpu
