// The memory of all CPU devices of a process, kept for later use: fresh pages cost more than the kernels
// that fill them. However many devices there are, at most kMostKept bytes wait for reuse.
//
// Blocks of 256 KiB and more are cut from areas by best fit, and join their free neighbours when they
// come back, so that a size serves others later:
//
//   area of 1 GiB    61 MiB in use, the rest free    all free    8 MiB in use, the rest free
//
// Areas lie on huge pages where the system offers them: a stream through small pages spends up to half
// of its time on looking them up. Of what is kept beyond the limit, areas without a block go back to
// the system, then the pages of free ranges between blocks. Smaller blocks are the heap's and are kept
// by size. Under AddressSanitizer every block is the heap's, so that what lies behind it is known.
//
// Thread safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace tinyshard {

class HostMemory {
 public:
  static constexpr size_t kMostKept = size_t{2} << 30;
  static constexpr size_t kMostSmallKept = size_t{64} << 20;  // beside these

  explicit HostMemory(size_t most_kept = kMostKept) : most_kept_(most_kept) {}
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;

  // The bytes that a block of that size takes.
  static size_t rounded(size_t bytes);
  void* take(size_t bytes);  // aligned to 64; null where the system has no more
  void give(void* block, size_t bytes) noexcept;
  size_t kept() const;
  void release_kept() noexcept;

 private:
  // A part of an area, in use or free; free ones have no free neighbours.
  struct Range {
    char* begin;
    size_t size;
    bool large;
    bool free = true;
    size_t warm = 0;  // of a free one: its first bytes, beyond which the system has no pages for it
    uint64_t freed = 0;                         // when, counted
    Range *before = nullptr, *after = nullptr;  // neighbours in the area
  };
  // Among ranges of one size the last used one comes first: caches may still hold it.
  struct BySize {
    bool operator()(const Range* a, const Range* b) const {
      return a->size != b->size ? a->size < b->size : a->freed > b->freed;
    }
  };

  void* take_small(size_t size);
  void give_small(void* block, size_t size) noexcept;
  void* take_range(size_t size);
  Range* new_area(size_t size, bool large);
  void split(Range* range, size_t size);
  void join(Range* range, Range* next);
  void put_free(Range* range);
  void take_out(Range* range);
  void shrink_to(size_t most) noexcept;

  const size_t most_kept_;
  mutable std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> small_;      // by size
  std::unordered_map<char*, std::unique_ptr<Range>> ranges_;  // by begin
  std::set<Range*, BySize> free_[2];                          // blocks below 4 MiB, others
  size_t small_kept_ = 0, kept_ = 0;
  uint64_t now_ = 0;
};

// Returns the memory of this process. It is never destroyed: static objects free theirs late.
HostMemory& host_memory();

}  // namespace tinyshard
