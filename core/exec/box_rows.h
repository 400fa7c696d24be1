// A box of a row-major array, as rows of bytes that are contiguous in the array and in the memory
// of the box. Inner dims that are whole in both make one row with the part of the dim around them:
//
//   f32[4, 6, 8], box [0:4, 2:4, 0:8] in memory for [4, 2, 8]: 4 rows of 64 bytes, 192 apart
#pragma once
#include <cstddef>
#include <cstdint>

#include "multi/local_box.h"

namespace tinyshard {

class BoxRows {
 public:
  // `room` is the shape of the memory, at least that of the box.
  BoxRows(DimSpan shape, const LocalBox& box, DimSpan room, size_t element);

  int64_t count() const { return count_; }  // 0 for an empty box
  size_t bytes() const { return bytes_; }   // of a row
  struct Place {
    uint64_t in_array, in_memory;  // in bytes
  };
  Place operator[](int64_t row) const;

 private:
  Dims sizes_, array_strides_, memory_strides_;  // of the dims outside of a row
  uint64_t first_ = 0;
  int64_t count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tinyshard
