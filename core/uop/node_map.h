// A side table: facts about nodes that a pass derives, kept outside of the immutable graph.
// Open addressing keyed by node pointer; holds no reference, so the graph must outlive it.
//
// Nodes that were made one after the other lie beside each other in memory, and walks visit them
// one after the other. Tables keep them together too: a graph of a hundred layers has tables of
// megabytes, and each look at a random place of these would miss the cache.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

// The slot at which a table of a power of two slots begins to look for a node. The nodes of one KiB
// of memory share 16 slots, as a node takes at least 64 bytes; the KiB is hashed (Fibonacci
// hashing). The node itself is not read.
inline size_t first_slot(const Node* node) {
  static_assert(sizeof(Node) >= 64);
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  const auto address = reinterpret_cast<uintptr_t>(node);
  return size_t((address >> 10) * kGolden >> 24 << 4 | (address >> 6 & 15));
}

template <class T>
class NodeMap {
 public:
  explicit NodeMap(size_t expected = 16) { rehash(expected * 2); }

  T* find(const UOp& x) { return find(x.get()); }
  T* find(const Node* node) {
    for (size_t i = first_slot(node) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].first == node) return &slots_[i].second;
      if (!slots_[i].first) return nullptr;
    }
  }
  const T* find(const UOp& x) const { return const_cast<NodeMap*>(this)->find(x.get()); }
  bool contains(const UOp& x) const { return find(x) != nullptr; }

  // The value of x, made by default construction when absent. References die at the next insertion.
  T& operator[](const UOp& x) {
    if ((size_ + 1) * 2 > slots_.size()) rehash(slots_.size() * 2);
    for (size_t i = first_slot(x.get()) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].first == x.get()) return slots_[i].second;
      if (!slots_[i].first) {
        slots_[i].first = x.get();
        ++size_;
        return slots_[i].second;
      }
    }
  }
  T& at(const UOp& x) { return *find(x); }
  const T& at(const UOp& x) const { return *find(x); }
  size_t size() const { return size_; }

 private:
  void rehash(size_t wanted) {
    size_t capacity = 16;
    while (capacity < wanted) capacity *= 2;
    std::vector<std::pair<const Node*, T>> old(capacity);
    old.swap(slots_);
    mask_ = capacity - 1;
    for (auto& [node, value] : old) {
      if (!node) continue;
      size_t i = first_slot(node) & mask_;
      while (slots_[i].first) i = (i + 1) & mask_;
      slots_[i] = {node, std::move(value)};
    }
  }

  std::vector<std::pair<const Node*, T>> slots_;
  size_t mask_ = 0, size_ = 0;
};

// Counts for each node how often it is a source of another node or a root. A node without uses is
// not in the map. `order`: all nodes of the graph.
inline NodeMap<int> count_uses(std::span<const UOp> order, std::span<const UOp> roots) {
  NodeMap<int> uses(order.size());
  for (const UOp& x : order) {
    for (const UOp& s : x->src()) ++uses[s];
  }
  for (const UOp& root : roots) ++uses[root];
  return uses;
}

}  // namespace tinyshard
