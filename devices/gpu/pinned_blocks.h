// Pinned host memory for values that are on their way to the host and may be read late: each has a
// block of its own, which the next value of about that size takes once nobody reads it.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <mutex>
#include <vector>

#include "devices/gpu/driver.h"

namespace tinyshard::gpu {

class Gpu;

class PinnedBlocks {
 public:
  static constexpr size_t kLargest = size_t{16} << 20;  // bytes; pinned memory is scarce

  explicit PinnedBlocks(Gpu& gpu) : gpu_(gpu) {}
  ~PinnedBlocks();
  PinnedBlocks(const PinnedBlocks&) = delete;

  // At most kLargest bytes.
  void* take(size_t bytes);
  // A copy to the block may still be under way: the next one waits for it in the compute queue.
  void give_back(void* block, size_t bytes) noexcept;

 private:
  static constexpr size_t kSmallest = 256;
  static size_t kind_of(size_t bytes) {  // by the power of two that it fits into
    return bytes <= kSmallest ? 0 : size_t(std::bit_width((bytes - 1) / kSmallest));
  }

  Gpu& gpu_;
  std::mutex mutex_;
  std::array<std::vector<void*>, std::bit_width(kLargest / kSmallest)> free_;
};

}  // namespace tinyshard::gpu
