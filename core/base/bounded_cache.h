// A cache of shared values whose bytes are counted. Beyond a limit those go that nobody else holds, the
// one that was asked for longest ago first:
//
//   limit 100: a 40, b 40, then c 40, while somebody holds a     b goes
//
// Not thread safe: its owner has a lock.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tinyshard {

template <class Key, class Value, class Hash = std::hash<Key>>
class BoundedCache {
 public:
  using Pointer = std::shared_ptr<Value>;

  // Returns null where there is none. What is found counts as used now.
  Pointer find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    found->second.used = ++now_;
    return found->second.value;
  }
  bool contains(const Key& key) const { return entries_.contains(key); }

  // Keeps the first of the values that are added for a key.
  void add(Key key, Pointer value, size_t bytes) {
    if (entries_.try_emplace(std::move(key), Entry{std::move(value), bytes, ++now_}).second)
      bytes_ += bytes;
  }

  // Says that more than the limit is kept, and that enough came since the last call of trim() for
  // another to be worth its while.
  bool is_full(size_t limit) const { return bytes_ > std::max(limit, kept_in_vain_); }

  // Takes out what is beyond three quarters of the limit and nobody else holds, so that it is looked
  // for rarely. The caller destroys it.
  std::vector<Pointer> trim(size_t limit) {
    std::vector<std::pair<uint64_t, const Key*>> idle;
    for (const auto& [key, entry] : entries_) {
      if (entry.value.use_count() == 1) idle.emplace_back(entry.used, &key);
    }
    std::ranges::sort(idle);
    std::vector<Pointer> gone;
    for (const auto& [used, key] : idle) {
      if (bytes_ <= limit - limit / 4) break;
      const auto entry = entries_.find(*key);
      bytes_ -= entry->second.bytes;
      gone.push_back(std::move(entry->second.value));
      entries_.erase(entry);
    }
    kept_in_vain_ = bytes_ > limit ? bytes_ + limit / 4 : 0;
    return gone;
  }

  void clear() {
    entries_.clear();
    bytes_ = kept_in_vain_ = 0;
  }
  size_t bytes() const { return bytes_; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Pointer value;
    size_t bytes;
    uint64_t used;
  };
  std::unordered_map<Key, Entry, Hash> entries_;
  size_t bytes_ = 0, kept_in_vain_ = 0;
  uint64_t now_ = 0;
};

}  // namespace tinyshard
