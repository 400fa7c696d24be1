// Memory for nodes, which are small, many, and made and dropped by whole graphs. Cells come from
// chunks that are kept for the next graph: given back, they would be fetched again by each pass.
//
// Each thread has a pool, of cells in lists by size. A list that is full goes to all threads, and one
// whose list is empty takes such a list before it cuts new cells: a thread that builds what another
// one drops does not grow for ever.
//
//   thread 1  takes 2000 cells, gives none      its lists are empty
//   thread 2  gives 2000 cells, takes none      its list has 976, a full list of 1024 is for all
//   thread 1  takes a cell                      from that list
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>  // lock_guard
#include <new>
#include <utility>
#include <vector>

#include "core/base/spin_lock.h"
#include "core/base/thread_local.h"

namespace tinyshard {

struct NodeCell {
  static constexpr size_t kStep = 16, kLargest = 512;  // bytes
  static constexpr size_t kSizes = kLargest / kStep + 1;
  static constexpr size_t size_of(size_t bytes) { return (bytes + kStep - 1) / kStep; }

  NodeCell* next;
};

// Full lists of cells, which wait for a thread that needs some. Threads: any.
class FullCellLists {
 public:
  void give(size_t size, NodeCell* list) {
    std::lock_guard held(lock_);
    lists_[size].push_back(list);
  }
  // Null for none.
  NodeCell* take(size_t size) {
    std::lock_guard held(lock_);
    if (lists_[size].empty()) return nullptr;
    NodeCell* list = lists_[size].back();
    lists_[size].pop_back();
    return list;
  }

 private:
  SpinLock lock_;
  std::array<std::vector<NodeCell*>, NodeCell::kSizes> lists_;
};

// Threads: a pool belongs to one. A cell may be given to another pool than the one it is of.
class NodePool {
 public:
  explicit NodePool(FullCellLists& full) : full_(full) {}

  void* take(size_t bytes) {
    if (!is_pooled(bytes)) return ::operator new(bytes);
    const size_t size = NodeCell::size_of(bytes);
    List& list = lists_[size];
    if (!list.first && !refill(list, size)) return cut(size * NodeCell::kStep);
    --list.count;
    return std::exchange(list.first, list.first->next);
  }
  // Memory that take(bytes) gave, of this pool or another one.
  void give(void* memory, size_t bytes) {
    if (!is_pooled(bytes)) {
      ::operator delete(memory);
      return;
    }
    const size_t size = NodeCell::size_of(bytes);
    List& list = lists_[size];
    if (list.count == kFull) {
      if (list.spare) full_.give(size, list.spare);
      list.spare = std::exchange(list.first, nullptr);
      list.count = 0;
    }
    list.first = new (memory) NodeCell{list.first};
    ++list.count;
  }

 private:
  static constexpr size_t kChunk = size_t{1} << 15;
  static constexpr uint32_t kFull = 1024;

  struct List {
    NodeCell* first = nullptr;
    NodeCell* spare = nullptr;  // a full list, so that give and take by turns stay by themselves
    uint32_t count = 0;         // cells of `first`
  };

  // An address sanitizer sees each node by itself.
  static constexpr bool is_pooled(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    return false;
#endif
    return bytes <= NodeCell::kLargest;
  }

  bool refill(List& list, size_t size) {
    list.first = list.spare ? std::exchange(list.spare, nullptr) : full_.take(size);
    list.count = list.first ? kFull : 0;
    return list.first != nullptr;
  }

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

  FullCellLists& full_;
  std::array<List, NodeCell::kSizes> lists_;  // by size
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

// A pool for each thread: the nodes of one lie together, in the order in which it makes them, and walks
// read them so. A thread that ends leaves its pool to the next one that begins. There is one object of
// this class in a process.
//
// Threads: any.
class NodePools {
 public:
  void* take(size_t bytes) {
    if (NodePool* own = own_pool()) [[likely]]
      return own->take(bytes);
    std::lock_guard held(lock_);
    return late_.take(bytes);
  }
  void give(void* memory, size_t bytes) {
    if (NodePool* own = own_pool()) [[likely]]
      return own->give(memory, bytes);
    std::lock_guard held(lock_);
    late_.give(memory, bytes);
  }

 private:
  // Null once the thread has left its pool: what other variables of the thread keep may end later.
  NodePool* own_pool() {
    TS_HOT_THREAD_LOCAL NodePool* own = nullptr;
    if (own) [[likely]]
      return own;
    TS_HOT_THREAD_LOCAL bool has_left = false;
    if (has_left) return nullptr;
    struct AtEnd {
      NodePools& pools;
      NodePool* pool;
      ~AtEnd() {
        own = nullptr;
        has_left = true;
        std::lock_guard held(pools.lock_);
        pools.unused_.push_back(pool);
      }
    };
    thread_local const AtEnd at_end{*this, unused()};
    own = at_end.pool;
    return own;
  }
  NodePool* unused() {
    std::lock_guard held(lock_);
    if (unused_.empty()) return &pools_.emplace_back(full_);
    NodePool* pool = unused_.back();
    unused_.pop_back();
    return pool;
  }

  FullCellLists full_;
  SpinLock lock_;
  std::deque<NodePool> pools_;  // where they stay
  std::vector<NodePool*> unused_;
  NodePool late_{full_};
};

}  // namespace tinyshard
