#include "devices/null/null_device.h"

#include <algorithm>

#include "core/base/error.h"

namespace tinyshard {
namespace {

class NullProgram : public Program {
 public:
  void launch(void* const*, const int64_t*) override {}
  std::string describe() const override { return "nothing"; }
};

class NullDevice : public Device {
 public:
  NullDevice(int index, const Target& like) : index_(index), target_(like) {}

  std::string name() const override { return "NULL:" + std::to_string(index_); }
  const Target& target() const override { return target_; }
  bool executes() const override { return false; }
  using Device::allocate;
  void* allocate(size_t bytes, const char*) override {
    stats_.used += int64_t(bytes);
    stats_.held = stats_.used;
    stats_.peak = std::max(stats_.peak, stats_.used);
    ++stats_.allocations;
    return this;  // an address that is not null and that nobody follows
  }
  void free(void*, size_t bytes) noexcept override { stats_.used -= int64_t(bytes); }
  MemoryStats memory() const override { return stats_; }
  void copy_in(void*, const void*, size_t) override {}
  void copy_out(void*, const void*, size_t) override {
    throw DeviceError(name() + " plans programs without running them: it has no values to read");
  }
  void* host_pointer(void*) override { return nullptr; }
  std::unique_ptr<Program> load(const ObjectCode&) override {
    return std::make_unique<NullProgram>();
  }
  // All that some library of a device does.
  bool supports(const LibraryCall& call, std::string*) const override {
    const Op op = call.node.op();
    return call.results.empty() || op == Op::Attention || op == Op::AttentionBackward;
  }
  std::unique_ptr<Program> library(const LibraryCall&) override {
    return std::make_unique<NullProgram>();
  }
  void synchronize() override {}

 private:
  int index_;
  Target target_;
  MemoryStats stats_;
};

}  // namespace

std::unique_ptr<Device> make_null_device(int index, const Target& like) {
  return std::make_unique<NullDevice>(index, like);
}

}  // namespace tinyshard
