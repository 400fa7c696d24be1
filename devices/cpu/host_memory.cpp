// Free ranges lie in two sets ordered by size, one for large blocks and one for
// others, and best fit takes the first that is large enough. A range notes how
// much of its front has been touched (`warm`): that alone is memory of the system,
// and counts as kept. Giving back joins a range with free neighbours; what exceeds
// the limit is returned, whole areas first, then what was used longest ago.
#include "devices/cpu/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace tinyshard {
namespace {

constexpr size_t kAlignment = 64, kStep = size_t{64} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRange = size_t{256} << 10;  // from here on blocks are ranges of areas
constexpr size_t kLarge = 2 * kHugePage;      // from here on of areas apart
// Areas may be larger than what lies in them: memory that nobody touches costs addresses only.
constexpr size_t kArea = size_t{64} << 20, kLargeArea = size_t{1} << 30;
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHeapOnly = true;
#else
constexpr bool kHeapOnly = false;
#endif

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// Aligned to huge pages. What the system maps in front of that and behind goes back.
char* map_area(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const size_t room = bytes + kHugePage;
  void* mapped = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* first = static_cast<char*>(mapped);
  const size_t before =
      round_up(reinterpret_cast<uintptr_t>(first), kHugePage) - reinterpret_cast<uintptr_t>(first);
  if (before > 0) ::munmap(first, before);
  char* begin = first + before;
  ::munmap(begin + bytes, room - before - bytes);
  ::madvise(begin, bytes, MADV_HUGEPAGE);  // advice only: a refusal costs speed
  return begin;
}

}  // namespace

size_t HostMemory::rounded(size_t bytes) {
  if (bytes > SIZE_MAX - kStep) return bytes;
  return std::max(round_up(bytes, bytes < kStep ? kAlignment : kStep), kAlignment);
}

HostMemory::~HostMemory() { release_kept(); }

void* HostMemory::take(size_t bytes) {
  const size_t size = rounded(bytes);
  if (kHeapOnly) return std::aligned_alloc(kAlignment, round_up(size, kAlignment));
  const std::lock_guard lock(mutex_);
  void* block = size < kRange ? take_small(size) : take_range(size);
  if (block) return block;
  shrink_to(0);
  return size < kRange ? take_small(size) : take_range(size);
}

void HostMemory::give(void* block, size_t bytes) noexcept {
  if (!block || kHeapOnly) return std::free(block);
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  if (size < kRange) return give_small(block, size);
  Range* range = ranges_.at(static_cast<char*>(block)).get();
  range->free = true;
  range->warm = range->size;
  range->freed = ++now_;
  for (Range* next : {range->after, range->before}) {
    if (!next || !next->free) continue;
    take_out(next);
    if (next == range->after) {
      join(range, next);
    } else {
      next->freed = range->freed;
      join(next, range);
      range = next;
    }
  }
  put_free(range);
  if (kept_ > most_kept_) shrink_to(most_kept_);
}

size_t HostMemory::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_ + small_kept_;
}

void HostMemory::release_kept() noexcept {
  const std::lock_guard lock(mutex_);
  shrink_to(0);
}

void* HostMemory::take_small(size_t size) {
  const auto found = small_.find(size);
  if (found == small_.end() || found->second.empty()) return std::aligned_alloc(kAlignment, size);
  void* block = found->second.back();
  found->second.pop_back();
  small_kept_ -= size;
  return block;
}

void HostMemory::give_small(void* block, size_t size) noexcept {
  if (small_kept_ + size > kMostSmallKept) {  // of sizes that nobody may ask for any more
    for (auto& [of, blocks] : small_) {
      for (void* b : blocks) std::free(b);
    }
    small_.clear();
    small_kept_ = 0;
  }
  small_[size].push_back(block);
  small_kept_ += size;
}

void* HostMemory::take_range(size_t size) {
  const bool large = size >= kLarge;
  Range wanted{nullptr, size, large};
  wanted.freed = UINT64_MAX;
  const auto found = free_[large].lower_bound(&wanted);
  Range* range = found == free_[large].end() ? new_area(size, large) : *found;
  if (!range) return nullptr;
  take_out(range);
  split(range, size);
  range->free = false;
  return range->begin;
}

HostMemory::Range* HostMemory::new_area(size_t size, bool large) {
  size_t bytes = large ? kLargeArea : kArea;
  char* begin = size <= bytes / 2 ? map_area(bytes) : nullptr;
  if (!begin) {  // near a limit of addresses only what is needed
    if (size > SIZE_MAX - kHugePage) return nullptr;
    bytes = round_up(size, kHugePage);
    begin = map_area(bytes);
  }
  if (!begin) return nullptr;
  auto& range = ranges_[begin];
  range = std::make_unique<Range>(Range{begin, bytes, large});
  put_free(range.get());
  return range.get();
}

// Makes a free range of the bytes behind the first `size`.
void HostMemory::split(Range* range, size_t size) {
  const size_t rest = range->size - size;
  if (rest == 0) return;
  auto& tail = ranges_[range->begin + size];
  tail = std::make_unique<Range>(Range{range->begin + size, rest, range->large});
  tail->warm = range->warm - std::min(size, range->warm);
  tail->freed = range->freed;
  tail->before = range;
  tail->after = range->after;
  if (tail->after) tail->after->before = tail.get();
  range->after = tail.get();
  range->size = size;
  put_free(tail.get());
}

void HostMemory::join(Range* range, Range* next) {
  if (next->warm > 0) range->warm = range->size + next->warm;
  range->size += next->size;
  range->after = next->after;
  if (range->after) range->after->before = range;
  char* begin = next->begin;
  ranges_.erase(begin);
}

void HostMemory::put_free(Range* range) {
  free_[range->large].insert(range);
  kept_ += range->warm;
}

void HostMemory::take_out(Range* range) {
  free_[range->large].erase(range);
  kept_ -= range->warm;
}

void HostMemory::shrink_to(size_t most) noexcept {
  if (most == 0) {
    for (auto& [size, blocks] : small_) {
      for (void* block : blocks) std::free(block);
    }
    small_.clear();
    small_kept_ = 0;
  }
  std::vector<Range*> warm;
  for (const auto& list : free_) {
    for (Range* range : list) {
      if (range->warm > 0) warm.push_back(range);
    }
  }
  auto is_area = [](const Range* range) { return !range->before && !range->after; };
  // Whole areas first, then what was used longest ago.
  std::ranges::sort(warm, {},
                    [&](const Range* range) { return std::pair(!is_area(range), range->freed); });
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (Range* range : warm) {
    if (kept_ <= most) return;
    take_out(range);
    if (is_area(range)) {
      char* begin = range->begin;
      ::munmap(begin, range->size);
      ranges_.erase(begin);
      continue;
    }
    // Ranges begin and end at multiples of 64 KiB, and so do pages, but for those of some systems.
    if (kStep % page == 0) ::madvise(range->begin, range->size, MADV_DONTNEED);
    range->warm = 0;
    put_free(range);
  }
}

HostMemory& host_memory() {
  static HostMemory& memory = *new HostMemory;
  return memory;
}

}  // namespace tinyshard
