// A sort on a GPU, and the kernels that it consists of: plain data, so that devices and the code generator
// see it alike. A row that fits a block is sorted by one kernel, longer ones by three for each byte of the keys:
//
//   count    counts[row][digit][tile]: how many keys of a tile have the digit
//   add      turns the counts of a row and a digit into how many are in earlier tiles, and sums them
//   move     puts each key, and its place in the row, behind those that come before it
#pragma once
#include <cstdint>

#include "core/dtype/dtype.h"
#include "core/runtime/target.h"

namespace tinyshard {

// order[row][i] is the place of the i-th smallest of keys[row][0 .. n), for i < k; of equal keys the
// earlier one comes first.
struct SortShape {
  DType key = DType::U32;  // U8, U16, U32 or U64
  int64_t rows = 1, n = 0, k = 0;
  int64_t bytes = itemsize(key);  // that keys may differ in: the others are zero

  static constexpr int64_t kDigits = 256;                            // of a step
  int64_t tile() const { return itemsize(key) == 8 ? 2048 : 4096; }  // keys that a block sorts
  int64_t tiles() const { return (n + tile() - 1) / tile(); }        // of a row
  bool is_long() const { return n > tile(); }  // takes steps, which move the keys
};

// The entries take the memory that is named here, and the coordinates {shift, k}: the lowest bit of the digit,
// and how many places of each row are kept. Counts, totals and places are of 32 bits.
struct SortSteps {
  ObjectCode count;  // keys, counts
  ObjectCode add;    // counts, totals [rows, digits]
  ObjectCode
      move_first;   // keys, counts, totals, keys moved, places: the place of a key is where it lies
  ObjectCode move;  // keys, counts, totals, keys moved, places, places before
};

}  // namespace tinyshard
