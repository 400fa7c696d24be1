// Device memory, kept for later use. Blocks are cut from segments that the driver gave, by best
// fit, and join their free neighbours when they come back; so a training step, which asks for the
// same sizes again and again, meets the driver once. Of sizes that change, such as those of batches of
// other lengths, no more is kept for later than was ever in use at once: segments without a block go
// back before another one is taken.
//
// The one rule of streams: what is freed may be handed out again at once, because all use of it is
// queued on one stream, or joined to it, in the order of the calls (core/runtime/device.h). Only
// memory that goes back to the driver waits for the device. Thread safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "core/runtime/device.h"

namespace tinyshard::gpu {

// Where segments come from; the driver, or a test.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* take(size_t bytes) = 0;  // null when there is no more
  virtual void give_back(void* segment) noexcept = 0;
  virtual void wait_idle() = 0;        // until nothing that was queued uses any memory
  virtual std::string describe() = 0;  // "3.1 GiB free of 139.8 GiB"
};

class Allocator {
 public:
  static constexpr size_t kAlignment = 512;
  static constexpr size_t kSmall = size_t{1} << 20;  // at most this: from shared small segments
  static constexpr size_t kSmallSegment = size_t{2} << 20;
  static constexpr size_t kLargeSegment = size_t{32} << 20;  // for blocks up to half of it

  Allocator(std::string device, MemorySource& source);
  ~Allocator();
  Allocator(const Allocator&) = delete;

  void* allocate(size_t bytes, const char* purpose);
  void free(void* memory) noexcept;
  MemoryStats stats() const;
  // Gives whole free segments back to the source.
  void release_cached();

 private:
  struct Block {
    char* begin;
    size_t size;
    bool small;
    const char* purpose = nullptr;              // null: free
    uint64_t freed = 0;                         // when, counted
    Block *before = nullptr, *after = nullptr;  // neighbours in the segment
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->begin < b->begin;
    }
  };

  Block* find(size_t size, bool small);
  Block* new_segment(size_t size, bool small);
  void split(Block* block, size_t size);
  void join(Block* block, Block* next);
  void release_locked() { release_beyond(0); }
  // Gives back whole free segments, those freed longest ago first, while more than that is kept.
  void release_beyond(int64_t kept);
  std::string out_of_memory(size_t bytes, const char* purpose) const;

  std::string device_;
  MemorySource& source_;
  mutable std::mutex mutex_;
  std::unordered_map<char*, std::unique_ptr<Block>> blocks_;  // by begin, free ones too
  std::set<Block*, BySize> free_[2];                          // large, small
  uint64_t now_ = 0;
  MemoryStats stats_;
};

}  // namespace tinyshard::gpu
