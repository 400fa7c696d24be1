// A block of 3000 bytes has 4096, the fifth of the sizes 256, 512, 1024 ..; it goes to the list of
// that size when it is given back, and stays there until the GPU is closed.
#include "devices/gpu/pinned_blocks.h"

#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {

PinnedBlocks::~PinnedBlocks() {
  for (const std::vector<void*>& blocks : free_) {
    for (void* block : blocks) gpu_.driver().host_free(block);
  }
}

void* PinnedBlocks::take(size_t bytes) {
  constexpr size_t kPortable = 1;
  const size_t kind = kind_of(bytes);
  const std::lock_guard lock(mutex_);
  std::vector<void*>& blocks = free_.at(kind);
  if (!blocks.empty()) {
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  void* block = nullptr;
  gpu_.check(gpu_.driver().host_allocate(&block, kSmallest << kind, kPortable),
             "pinned host memory");
  return block;
}

void PinnedBlocks::give_back(void* block, size_t bytes) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_.at(kind_of(bytes)).push_back(block);
  } catch (...) {
    gpu_.driver().host_free(block);
  }
}

}  // namespace tinyshard::gpu
