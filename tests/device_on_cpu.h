// A device for tests: the CPU under another name, of which a test overrides the part that it is about.
#pragma once
#include <memory>
#include <string>

#include "core/runtime/device.h"
#include "devices/cpu/cpu_device.h"

namespace tinyshard::test {

class DeviceOnCpu : public Device {
 public:
  DeviceOnCpu(const std::string& kind, int index)
      : name_(kind + ":" + std::to_string(index)), cpu_(make_cpu_device(index, 1)) {}

  std::string name() const override { return name_; }
  const Target& target() const override { return cpu_->target(); }
  const DeviceProfile& profile() const override { return cpu_->profile(); }
  using Device::allocate;
  void* allocate(size_t bytes, const char* purpose) override {
    return cpu_->allocate(bytes, purpose);
  }
  void free(void* memory, size_t bytes) noexcept override { cpu_->free(memory, bytes); }
  MemoryStats memory() const override { return cpu_->memory(); }
  void copy_in(void* to, const void* host, size_t bytes) override {
    cpu_->copy_in(to, host, bytes);
  }
  void copy_out(void* host, const void* from, size_t bytes) override {
    cpu_->copy_out(host, from, bytes);
  }
  void* host_pointer(void* memory) override { return memory; }
  std::unique_ptr<Program> load(const ObjectCode& code) override { return cpu_->load(code); }
  bool supports(const LibraryCall& call, std::string* why) const override {
    return cpu_->supports(call, why);
  }
  std::unique_ptr<Program> library(const LibraryCall& call) override { return cpu_->library(call); }
  void synchronize() override { cpu_->synchronize(); }

 protected:
  Device& cpu() { return *cpu_; }
  const Device& cpu() const { return *cpu_; }

 private:
  const std::string name_;
  const std::unique_ptr<Device> cpu_;
};

}  // namespace tinyshard::test
