// An allocation returns an address that nobody follows, and adds to a count. A plan without a
// device in mind assumes a library for nearly every op, and has no speeds: bytes alone count in it.
#include "devices/null/null_device.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard {
namespace {

class NullProgram : public Program {
 public:
  void launch(void* const*, const int64_t*) override {}
  std::string describe() const override { return "nothing"; }
};

class NullDevice : public Device {
 public:
  NullDevice(int index, PlannedDevice like) : index_(index), like_(std::move(like)) {}

  std::string name() const override { return like_.kind + ":" + std::to_string(index_); }
  const Target& target() const override { return like_.target; }
  const DeviceProfile& profile() const override { return like_.profile; }
  bool executes() const override { return false; }
  using Device::allocate;
  void* allocate(size_t bytes, const char*) override {
    std::lock_guard lock(mutex_);
    stats_.used += int64_t(bytes);
    stats_.held = stats_.used;
    stats_.peak = std::max(stats_.peak, stats_.used);
    ++stats_.allocations;
    return this;  // an address that is not null and that nobody follows
  }
  void free(void*, size_t bytes) noexcept override {
    std::lock_guard lock(mutex_);
    stats_.used -= int64_t(bytes);
  }
  MemoryStats memory() const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void copy_in(void*, const void*, size_t) override {}
  void copy_out(void*, const void*, size_t) override {
    throw DeviceError(name() + " plans programs without running them: it has no values to read");
  }
  void* host_pointer(void*) override { return nullptr; }
  std::unique_ptr<Program> load(const ObjectCode&) override {
    return std::make_unique<NullProgram>();
  }
  bool supports(const LibraryCall& call, std::string* why) const override {
    return like_.supports(call, why);
  }
  const LibraryProvider* library_provider() const override { return like_.provider; }
  int64_t worth_copying(const LibraryCall& call, int operand) const override {
    return like_.worth_copying ? like_.worth_copying(call, operand) : 0;
  }
  std::unique_ptr<Program> library(const LibraryCall&) override {
    return std::make_unique<NullProgram>();
  }
  void synchronize() override {}

 private:
  int index_;
  PlannedDevice like_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
};

}  // namespace

std::unique_ptr<Device> make_null_device(int index, PlannedDevice like) {
  return std::make_unique<NullDevice>(index, std::move(like));
}

PlannedDevice planned_host(const Target& host, const DeviceProfile& profile) {
  auto supports = [](const LibraryCall& call, std::string*) {
    const Op op = call.node.op();
    if (op == Op::Attention && call.node->sources > 3) return false;  // as on a CPU
    return call.results.empty() || op == Op::Attention || op == Op::AttentionBackward;
  };
  // Plans for it count bytes alone, as theory does.
  DeviceProfile like = profile;
  like.speeds = {};
  return {.kind = "NULL",
          .target = host,
          .profile = like,
          .supports = supports,
          .provider = &gpu::products_provider(),
          .worth_copying = {}};
}

}  // namespace tinyshard
