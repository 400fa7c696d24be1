// A set of nodes, by address: to ask for one fetches none of its memory. One KiB of memory is one
// entry with a bit for each place at which a node may begin, so that the set of all nodes of a large
// graph fits the cache, too. Holds no reference, so the graph must outlive it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

class NodeSet {
 public:
  // True for the first time.
  bool add(const UOp& x) {
    if ((used_ + 1) * 2 > entries_.size()) grow();
    const auto [block, bit] = place_of(x.get());
    Entry& entry = entries_[slot_of(entries_, block)];
    if (entry.there & bit) return false;
    if (entry.there == 0) {
      entry.block = block;
      ++used_;
    }
    entry.there |= bit;
    ++size_;
    return true;
  }
  bool contains(const UOp& x) const {
    const auto [block, bit] = place_of(x.get());
    return (entries_[slot_of(entries_, block)].there & bit) != 0;
  }
  size_t size() const { return size_; }

 private:
  static constexpr uintptr_t kPlace = 16;  // what all allocations are aligned to
  struct Entry {
    uintptr_t block = 0;
    uint64_t there = 0;  // 0: no entry
  };
  struct Place {
    uintptr_t block;
    uint64_t bit;
  };

  static Place place_of(const Node* node) {
    static_assert(sizeof(Node) >= kPlace);
    const auto address = reinterpret_cast<uintptr_t>(node);
    return {address / (64 * kPlace), uint64_t{1} << (address / kPlace % 64)};
  }
  // Returns the slot of the block's entry, or of the free one where it belongs.
  static size_t slot_of(const std::vector<Entry>& entries, uintptr_t block) {
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
    const size_t mask = entries.size() - 1;
    size_t i = (block * kGolden >> 32) & mask;
    while (entries[i].there != 0 && entries[i].block != block) i = (i + 1) & mask;
    return i;
  }
  void grow() {
    std::vector<Entry> larger(entries_.size() * 2);
    for (const Entry& entry : entries_) {
      if (entry.there != 0) larger[slot_of(larger, entry.block)] = entry;
    }
    entries_.swap(larger);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(32);
  size_t used_ = 0, size_ = 0;  // entries, nodes
};

}  // namespace tinyshard
