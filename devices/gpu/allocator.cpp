// Blocks of a segment are a list by address; free ones are also in a set by size. Example: of a
// free block of 64 KiB, 16 are asked for: it is split into 16 used and 48 free. When the 16 come
// back, they join the 48 behind them.
#include "devices/gpu/allocator.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::gpu {
namespace {

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

std::string mib(size_t bytes) {
  return bytes < (size_t{1} << 20) ? fmt::format("{} bytes", bytes)
                                   : fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
}

}  // namespace

Allocator::Allocator(std::string device, MemorySource& source)
    : device_(std::move(device)), source_(source) {}

Allocator::~Allocator() {
  for (auto& [begin, block] : blocks_) {
    if (!block->before) source_.give_back(begin);
  }
}

void* Allocator::allocate(size_t bytes, const char* purpose) {
  size_t size = round_up(std::max<size_t>(bytes, 1), kAlignment);
  bool small = size <= kSmall;
  std::lock_guard lock(mutex_);
  Block* block = find(size, small);
  if (!block) {
    release_beyond(std::max<int64_t>(stats_.peak, kLargeSegment));
    block = new_segment(size, small);
  }
  if (!block) {
    release_locked();
    block = new_segment(size, small);
  }
  if (!block) throw DeviceError(out_of_memory(bytes, purpose));
  split(block, size);
  block->purpose = purpose;
  stats_.used += int64_t(block->size);
  stats_.peak = std::max(stats_.peak, stats_.used);
  ++stats_.allocations;
  return block->begin;
}

Allocator::Block* Allocator::find(size_t size, bool small) {
  Block wanted{nullptr, size, small};
  auto& list = free_[small];
  auto found = list.lower_bound(&wanted);
  if (found == list.end()) return nullptr;
  Block* block = *found;
  list.erase(found);
  return block;
}

Allocator::Block* Allocator::new_segment(size_t size, bool small) {
  size_t bytes = small                       ? kSmallSegment
                 : size <= kLargeSegment / 2 ? kLargeSegment
                                             : round_up(size, kSmallSegment);
  auto* begin = static_cast<char*>(source_.take(bytes));
  if (!begin && bytes > size) {
    bytes = round_up(size, kSmallSegment);  // near the end, only what is needed
    begin = static_cast<char*>(source_.take(bytes));
  }
  if (!begin) return nullptr;
  stats_.held += int64_t(bytes);
  auto& block = blocks_[begin];
  block = std::make_unique<Block>(Block{begin, bytes, small});
  return block.get();
}

// Makes a free block of the bytes behind the first `size`, unless they are too few to be of use.
void Allocator::split(Block* block, size_t size) {
  size_t rest = block->size - size;
  if (rest < (block->small ? kAlignment : kSmall)) return;
  auto& tail = blocks_[block->begin + size];
  tail = std::make_unique<Block>(Block{block->begin + size, rest, block->small});
  tail->before = block;
  tail->after = block->after;
  if (tail->after) tail->after->before = tail.get();
  block->after = tail.get();
  block->size = size;
  free_[tail->small].insert(tail.get());
}

void Allocator::join(Block* block, Block* next) {
  block->size += next->size;
  block->after = next->after;
  if (block->after) block->after->before = block;
  char* begin = next->begin;
  blocks_.erase(begin);
}

void Allocator::free(void* memory) noexcept {
  if (!memory) return;
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(static_cast<char*>(memory));
  if (found == blocks_.end() || !found->second->purpose) return;
  Block* block = found->second.get();
  stats_.used -= int64_t(block->size);
  block->purpose = nullptr;
  block->freed = ++now_;
  if (Block* next = block->after; next && !next->purpose) {
    free_[next->small].erase(next);
    join(block, next);
  }
  if (Block* before = block->before; before && !before->purpose) {
    free_[before->small].erase(before);
    before->freed = block->freed;
    join(before, block);
    block = before;
  }
  free_[block->small].insert(block);
}

MemoryStats Allocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Allocator::release_cached() {
  std::lock_guard lock(mutex_);
  release_locked();
}

void Allocator::release_beyond(int64_t kept) {
  if (stats_.held - stats_.used <= kept) return;
  std::vector<Block*> whole;
  for (auto& list : free_) {
    for (Block* block : list) {
      if (!block->before && !block->after) whole.push_back(block);
    }
  }
  if (whole.empty()) return;
  std::ranges::sort(whole, {}, &Block::freed);
  source_.wait_idle();
  for (Block* block : whole) {
    if (stats_.held - stats_.used <= kept) return;
    free_[block->small].erase(block);
    stats_.held -= int64_t(block->size);
    char* begin = block->begin;
    blocks_.erase(begin);
    source_.give_back(begin);
  }
}

std::string Allocator::out_of_memory(size_t bytes, const char* purpose) const {
  struct Held {
    size_t bytes = 0, blocks = 0, largest = 0;
  };
  std::map<std::string_view, Held> held;
  size_t cached = 0, largest = 0;
  for (auto& [begin, block] : blocks_) {
    if (!block->purpose) {
      cached += block->size;
      largest = std::max(largest, block->size);
      continue;
    }
    Held& h = held[block->purpose];
    h.bytes += block->size;
    h.largest = std::max(h.largest, block->size);
    ++h.blocks;
  }
  std::string text =
      fmt::format("{}: out of memory: {} asked for {}; in use", device_, mib(bytes), purpose);
  if (held.empty()) text += " nothing";
  std::vector<std::pair<std::string_view, Held>> order(held.begin(), held.end());
  std::ranges::sort(order, std::greater(), [](const auto& h) { return h.second.bytes; });
  const char* separator = " ";
  for (auto& [what, h] : order) {
    text += fmt::format("{}{} by {} ({} blocks, the largest {})", separator, mib(h.bytes), what,
                        h.blocks, mib(h.largest));
    separator = ", ";
  }
  return text + fmt::format("; cached in pieces {}, the largest {}; peak {}; the device has {}",
                            mib(cached), mib(largest), mib(size_t(stats_.peak)),
                            source_.describe());
}

}  // namespace tinyshard::gpu
