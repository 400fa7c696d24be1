// All work is handed to a CPU device. Only the target differs, in the alignment: values lie in
// files wherever they do, and kernels that read them may not assume 64 bytes.
#include "devices/disk/disk_device.h"

namespace tinyshard {
namespace {

class DiskDevice : public Device {
 public:
  explicit DiskDevice(std::unique_ptr<Device> cpu) : cpu_(std::move(cpu)), target_(cpu_->target()) {
    target_.memory_alignment = 1;  // values lie in files wherever they do
  }

  std::string name() const override { return "DISK:0"; }
  const Target& target() const override { return target_; }
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

 private:
  std::unique_ptr<Device> cpu_;
  Target target_;
};

}  // namespace

std::unique_ptr<Device> make_disk_device(std::unique_ptr<Device> cpu) {
  return std::make_unique<DiskDevice>(std::move(cpu));
}

}  // namespace tinyshard
