// Dims of one element have no say in whether a view is dense, whatever their strides are.
// Neighbours join where the outer stride is the inner stride times the inner size: [4, 8] with
// strides 16 and 2 joins to 32 elements 2 apart.
#include "core/runtime/strided_view.h"

namespace tinyshard {

StridedView row_major(DimSpan shape) {
  StridedView view{0, Dims(shape.begin(), shape.end()), Dims(shape.size())};
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    view.strides[i] = stride;
    stride *= shape[i];
  }
  return view;
}

bool is_row_major(const StridedView& view) {
  int64_t stride = 1;
  bool dense = view.offset == 0;
  for (size_t i = view.shape.size(); i-- > 0; stride *= view.shape[i])
    dense = dense && (view.shape[i] == 1 || view.strides[i] == stride);
  return dense;
}

std::optional<int64_t> joint_stride(const StridedView& view, size_t begin, size_t end) {
  int64_t stride = 0, size = 1;
  for (size_t i = end; i-- > begin;) {
    if (view.shape[i] == 1) continue;
    if (size == 1)
      stride = view.strides[i];
    else if (view.strides[i] != stride * size)
      return std::nullopt;
    size *= view.shape[i];
  }
  return stride;
}

}  // namespace tinyshard
