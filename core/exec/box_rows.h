// A box of a row-major array, as rows of bytes that are contiguous in the array and in the memory
// of the box. Inner dims that are whole in both make one row with the part of the dim around them:
//
//   f32[4, 6, 8], box [0:4, 2:4, 0:8] in memory for [4, 2, 8]: 4 rows of 64 bytes, 192 apart
#pragma once
#include <algorithm>
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

  // A stretch of the box: bytes [from, to) of its rows one after the other, which lie in bytes
  // [begin, end) of the memory. That is more where there is something between rows.
  struct Stretch {
    size_t from, to;
    uint64_t begin, end;
    size_t size() const { return to - from; }
    size_t room() const { return size_t(end - begin); }
  };
  // The longest stretch from byte `from` on that ends before `to` and takes `limit` bytes of memory at
  // most; it consists of whole rows where one fits.
  Stretch stretch(size_t from, size_t to, size_t limit) const;
  // Calls run(in_array, in_memory, bytes) for the piece of each row that lies in the stretch, in
  // order.
  template <class Run>
  void for_each_row(const Stretch& of, const Run& run) const {
    for (size_t at = of.from; at < of.to;) {
      const size_t within = at % bytes_, n = std::min(bytes_ - within, of.to - at);
      const Place place = (*this)[int64_t(at / bytes_)];
      run(place.in_array + within, place.in_memory + within, n);
      at += n;
    }
  }
  size_t total() const { return size_t(count_) * bytes_; }

 private:
  Dims sizes_, array_strides_, memory_strides_;  // of the dims outside of a row
  uint64_t first_ = 0;
  int64_t count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tinyshard
