// Dims join from the innermost outwards until one is cut, in the array or in memory: that one still
// belongs to the row, as its elements are contiguous. Row r is then found by the digits of r in the
// sizes of the dims outside, times the strides of both sides.
#include "core/exec/box_rows.h"

namespace tinyshard {

BoxRows::BoxRows(DimSpan shape, const LocalBox& box, DimSpan room, size_t element) {
  const size_t rank = shape.size();
  Dims array(rank), memory(rank);  // strides in bytes
  int64_t in_array = int64_t(element), in_memory = int64_t(element);
  for (size_t d = rank; d-- > 0;) {
    array[d] = in_array;
    memory[d] = in_memory;
    in_array *= shape[d];
    in_memory *= room[d];
    first_ += uint64_t(box.begin[d] * array[d]);
  }
  size_t outer = rank;
  bytes_ = element;
  while (outer > 0) {
    --outer;
    bytes_ *= size_t(box.size[outer]);
    if (box.size[outer] != shape[outer] || box.size[outer] != room[outer]) break;
  }
  sizes_.assign(box.size.begin(), box.size.begin() + ptrdiff_t(outer));
  array_strides_.assign(array.begin(), array.begin() + ptrdiff_t(outer));
  memory_strides_.assign(memory.begin(), memory.begin() + ptrdiff_t(outer));
  count_ = bytes_ == 0 ? 0 : product(sizes_);
}

BoxRows::Place BoxRows::operator[](int64_t row) const {
  Place place{first_, 0};
  for (size_t d = sizes_.size(); d-- > 0;) {
    const int64_t at = row % sizes_[d];
    row /= sizes_[d];
    place.in_array += uint64_t(at * array_strides_[d]);
    place.in_memory += uint64_t(at * memory_strides_[d]);
  }
  return place;
}

}  // namespace tinyshard
