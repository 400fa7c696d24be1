// Memory for nodes, which are small, many, and made and dropped by whole graphs. Cells come from
// chunks that are kept for the next graph: given back, they would be fetched again by each pass.
// Threads: any.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>  // lock_guard
#include <new>
#include <vector>

#include "core/base/spin_lock.h"

namespace tinyshard {

class NodePool {
 public:
  void* take(size_t bytes) {
    if (!is_pooled(bytes)) return ::operator new(bytes);
    std::lock_guard held(lock_);
    Cell*& free = free_[bytes_class(bytes)];
    if (!free) return cut(bytes_class(bytes) * kStep);
    Cell* cell = free;
    free = cell->next;
    return cell;
  }
  // Memory that take(bytes) gave, of this pool or another one.
  void give(void* memory, size_t bytes) {
    if (!is_pooled(bytes)) {
      ::operator delete(memory);
      return;
    }
    std::lock_guard held(lock_);
    Cell*& free = free_[bytes_class(bytes)];
    free = new (memory) Cell{free};
  }

 private:
  struct Cell {
    Cell* next;
  };
  static constexpr size_t kStep = 16, kLargest = 512, kChunk = size_t{1} << 15;

  // An address sanitizer sees each node by itself.
  static constexpr bool is_pooled(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    return false;
#endif
    return bytes <= kLargest;
  }
  static constexpr size_t bytes_class(size_t bytes) { return (bytes + kStep - 1) / kStep; }

  void* cut(size_t bytes) {
    if (left_ < bytes) {
      chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kChunk));
      next_ = chunks_.back().get();
      left_ = kChunk;
    }
    void* cell = next_;
    next_ += bytes;
    left_ -= bytes;
    return cell;
  }

  SpinLock lock_;
  std::array<Cell*, kLargest / kStep + 1> free_{};  // by size
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace tinyshard
