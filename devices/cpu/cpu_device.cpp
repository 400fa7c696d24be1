#include "devices/cpu/cpu_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "devices/cpu/library_calls.h"
#include "devices/cpu/onednn.h"
#include "devices/cpu/program.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

// One pool for all devices of the process; its size is fixed by the first. It ends with the
// library, which is loaded before any object of the program is made: their destructors may still
// compute.
std::unique_ptr<ThreadPool> pool_of_process;
std::once_flag pool_is_made;
ThreadPool& shared_pool(int local_ranks) {
  std::call_once(pool_is_made, [&] {
    pool_of_process =
        std::make_unique<ThreadPool>(default_thread_count(local_ranks, options().threads));
  });
  return *pool_of_process;
}

// Blocks go back to a list of their size: a training step asks for the same sizes again and again,
// and fresh pages cost more than the kernels that fill them.
//
// A stream through small pages spends up to half of its time on looking them up, so blocks lie on
// huge pages where the system offers them: those of 4 MiB and more on pages of their own, those of
// 256 KiB and more one after another in areas of 16 MiB. Such an area is given back when all of its
// blocks are free and much is held. Smaller blocks are the heap's.
class CachingAllocator {
 public:
  ~CachingAllocator() {
    for (auto& [size, blocks] : free_) {
      if (is_cut(size)) continue;
      for (void* block : blocks) std::free(block);
    }
    for (auto& [area, users] : areas_) {
      if (users == 0) std::free(area);
    }
  }

  void* allocate(size_t bytes, const std::string& device) {
    size_t size = rounded(bytes);
    std::lock_guard lock(mutex_);
    void* block = nullptr;
    if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) {
      block = found->second.back();
      found->second.pop_back();
      held_ -= size;
    } else {
      block = fresh(size);
      if (!block) {
        release_all();
        block = fresh(size);
      }
    }
    if (!block) {
      throw DeviceError(fmt::format("{}: out of memory: {} bytes asked for, {} in use, peak {}",
                                    device, bytes, stats_.used, stats_.peak));
    }
    if (is_cut(size)) ++users_of(block);
    stats_.used += int64_t(size);
    stats_.peak = std::max(stats_.peak, stats_.used);
    ++stats_.allocations;
    return block;
  }

  void free(void* block, size_t bytes) {
    size_t size = rounded(bytes);
    std::lock_guard lock(mutex_);
    stats_.used -= int64_t(size);
    const bool full = held_ + size > kMostHeld;
    if (full && !is_cut(size)) return std::free(block);
    free_[size].push_back(block);
    held_ += size;
    if (is_cut(size) && --users_of(block) == 0 && full) release_areas();
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    MemoryStats stats = stats_;
    stats.held = stats.used + int64_t(held_);
    return stats;
  }

 private:
  static constexpr size_t kAlignment = 64, kMostHeld = size_t{2} << 30;
  static constexpr size_t kHugePage = size_t{2} << 20, kLarge = 2 * kHugePage;
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kCut = kLarge;  // none, so that what lies behind a block is known
#else
  static constexpr size_t kCut = kLarge / 16;
#endif
  static constexpr size_t kArea = 4 * kLarge;
  static bool is_cut(size_t size) { return size >= kCut && size < kLarge; }
  static void* huge_pages(size_t size) {
    void* block = nullptr;
    if (posix_memalign(&block, kHugePage, size) != 0) return nullptr;
    madvise(block, size, MADV_HUGEPAGE);  // advice only: a refusal costs speed
    return block;
  }
  static size_t rounded(size_t bytes) {
    size_t step = bytes < (1 << 16) ? kAlignment : size_t{1} << 16;
    return std::max((bytes + step - 1) / step * step, kAlignment);
  }
  void* fresh(size_t size) {
    if (!is_cut(size))
      return size < kLarge ? std::aligned_alloc(kAlignment, size) : huge_pages(size);
    if (size_t(uncut_end_ - uncut_) < size) {
      void* area = huge_pages(kArea);
      if (!area) return nullptr;
      areas_[area] = 0;
      uncut_ = static_cast<char*>(area);
      uncut_end_ = uncut_ + kArea;
    }
    return std::exchange(uncut_, uncut_ + size);
  }
  // Blocks in use of the area that a block was cut from.
  int& users_of(void* block) { return std::prev(areas_.upper_bound(block))->second; }
  void release_areas() {
    for (auto& [size, blocks] : free_) {
      if (!is_cut(size)) continue;
      held_ -= size * std::erase_if(blocks, [&](void* block) { return users_of(block) == 0; });
    }
    std::erase_if(areas_, [&](const auto& area) {
      if (area.second > 0) return false;
      if (static_cast<char*>(area.first) + kArea == uncut_end_) uncut_ = uncut_end_ = nullptr;
      std::free(area.first);
      return true;
    });
  }
  void release_all() {
    for (auto& [size, blocks] : free_) {
      if (is_cut(size)) continue;
      for (void* block : blocks) std::free(block);
      held_ -= size * blocks.size();
      blocks.clear();
    }
    release_areas();
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;     // by size
  std::map<void*, int> areas_;                    // and how many of their blocks are in use
  char *uncut_ = nullptr, *uncut_end_ = nullptr;  // what is left of the newest area
  size_t held_ = 0;
  MemoryStats stats_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(int index, ThreadPool& pool) : index_(index), pool_(pool) {}

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
  mutable CachingAllocator memory_;
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
