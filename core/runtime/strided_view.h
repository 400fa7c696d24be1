// Elements of a buffer seen through strides: how libraries are told where operands and results lie.
#pragma once
#include <cstdint>
#include <optional>

#include "core/uop/uop.h"

namespace tinyshard {

struct StridedView {
  int64_t offset = 0;
  Dims shape, strides;  // in elements
};

StridedView row_major(DimSpan shape);
// Tells whether the view is that of its shape; the strides of dims of one element are any.
bool is_row_major(const StridedView& view);
// Dims [begin, end) as one: its stride, when theirs allow it; 0 when they have one element.
std::optional<int64_t> joint_stride(const StridedView& view, size_t begin, size_t end);

}  // namespace tinyshard
