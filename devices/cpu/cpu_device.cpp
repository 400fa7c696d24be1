// Devices differ in their numbers and in what they count; the pool of
// threads and the blocks kept for later belong to the process. Copies
// are divided among the threads in pieces of a megabyte at least.
#include "devices/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/runtime/workspaces.h"
#include "devices/cpu/host_memory.h"
#include "devices/cpu/library_calls.h"
#include "devices/cpu/onednn.h"
#include "devices/cpu/program.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

// All devices of the process share a pool; its size is fixed by the first. It is never destroyed: while
// the process exits, destructors and other threads may still copy and compute.
ThreadPool& shared_pool(int local_ranks) {
  static ThreadPool& pool = *new ThreadPool(default_thread_count(local_ranks, options().threads));
  return pool;
}

// A device's share of the memory of the process, counted.
class CountedMemory {
 public:
  void* allocate(size_t bytes, const std::string& device) {
    void* block = host_memory().take(bytes);
    const std::lock_guard lock(mutex_);
    if (!block) {
      throw DeviceError(fmt::format("{}: out of memory: {} bytes asked for, {} in use, peak {}",
                                    device, bytes, stats_.used, stats_.peak));
    }
    stats_.used += int64_t(HostMemory::rounded(bytes));
    stats_.peak = std::max(stats_.peak, stats_.used);
    ++stats_.allocations;
    return block;
  }
  void free(void* block, size_t bytes) noexcept {
    host_memory().give(block, bytes);
    const std::lock_guard lock(mutex_);
    stats_.used -= int64_t(HostMemory::rounded(bytes));
  }
  MemoryStats stats() const {
    const std::lock_guard lock(mutex_);
    MemoryStats stats = stats_;
    stats.held = stats.used + int64_t(host_memory().kept());
    return stats;
  }

 private:
  mutable std::mutex mutex_;
  MemoryStats stats_;
};

class CpuDevice : public Device, public TellsWorkspaces {
 public:
  CpuDevice(int index, ThreadPool& pool) : index_(index), pool_(pool) {}
  ~CpuDevice() override { host_memory().release_kept(); }

  std::string name() const override { return fmt::format("CPU:{}", index_); }
  const Target& target() const override { return host_target(); }
  const DeviceProfile& profile() const override { return host_profile(); }
  using Device::allocate;
  void* allocate(size_t bytes, const char*) override { return memory_.allocate(bytes, name()); }
  void free(void* memory, size_t bytes) noexcept override { memory_.free(memory, bytes); }
  MemoryStats memory() const override { return memory_.stats(); }
  void copy_in(void* to, const void* host, size_t bytes) override { copy(to, host, bytes); }
  void copy_out(void* host, const void* from, size_t bytes) override { copy(host, from, bytes); }
  void* host_pointer(void* memory) override { return memory; }
  std::unique_ptr<Program> load(const ObjectCode& code) override {
    return std::make_unique<CpuProgram>(code, pool_);
  }
  bool supports(const LibraryCall& call, std::string* why) const override {
    return cpu_library_supports(call, why);
  }
  std::unique_ptr<Program> library(const LibraryCall& call) override {
    return make_cpu_library_program(call, pool_, *this);
  }
  int64_t workspace_bytes(std::span<const LibraryCall* const> calls) const override {
    return cpu_workspace_bytes(calls, pool_);
  }
  void synchronize() override {}  // launches return when they are done

 private:
  void copy(void* to, const void* from, size_t bytes) {
    constexpr int64_t kPiece = 1 << 20;
    auto* out = static_cast<char*>(to);
    auto* in = static_cast<const char*>(from);
    pool_.parallel_for(
        int64_t(bytes),
        [&](int64_t begin, int64_t end, int) {
          std::memcpy(out + begin, in + begin, size_t(end - begin));
        },
        kPiece);
  }

  int index_;
  ThreadPool& pool_;
  CountedMemory memory_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int index, int local_ranks) {
  return std::make_unique<CpuDevice>(index, shared_pool(local_ranks));
}

std::string describe_cpu() {
  std::string model = "unknown model", line;
  std::ifstream info("/proc/cpuinfo");
  while (std::getline(info, line)) {
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  return fmt::format("{}, {} cores, {} bit vectors", model, available_cores(),
                     host_target().vector_bits);
}

}  // namespace tinyshard
