// Sets of ops, one bit each.
//
//   constexpr OpSet kSums = op_set(Op::Add, Op::Sub);
//   kSums.contains(Op::Add)             // true
//   OpSet{}.subset_of(kSums)            // true: the empty set is part of each
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/uop/op.h"

namespace tinyshard {

class OpSet {
 public:
  static constexpr int kRoom = 256;
  constexpr void add(Op op) { words_[word(op)] |= bit(op); }
  constexpr bool contains(Op op) const { return (words_[word(op)] & bit(op)) != 0; }
  constexpr bool subset_of(const OpSet& other) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & ~other.words_[i]) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr size_t word(Op op) { return static_cast<size_t>(op) / 64; }
  static constexpr uint64_t bit(Op op) { return uint64_t{1} << (static_cast<size_t>(op) % 64); }
  std::array<uint64_t, kRoom / 64> words_{};
};
static_assert(kOps <= OpSet::kRoom, "an OpSet holds one bit per op");

template <class... Ops>
constexpr OpSet op_set(Ops... ops) {
  OpSet set;
  (set.add(ops), ...);
  return set;
}

}  // namespace tinyshard
