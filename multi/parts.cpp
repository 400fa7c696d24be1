// A dim that does not divide is padded to equal parts first, and the
// padding is cut off at the way back:
//
//   f32[7, 2] in 4 parts along dim 0    pad [8, 2]    reshape [4, 2, 2]    parts lead: [4, 2, 2]
#include "multi/parts.h"

namespace tinyshard {

UOp parts_first(const UOp& whole, int dim, int64_t parts) {
  UOp x = whole;
  Dims shape(x.shape().begin(), x.shape().end());
  int64_t part = (shape[dim] + parts - 1) / parts, missing = part * parts - shape[dim];
  if (missing > 0) {
    Dims lo_hi(2 * shape.size());
    lo_hi[2 * dim + 1] = missing;
    x = pad(x, lo_hi);
  }
  shape[dim] = part;
  shape.insert(shape.begin() + dim, parts);
  Dims order{dim};
  for (int i = 0; i < int(shape.size()); ++i) {
    if (i != dim) order.push_back(i);
  }
  return permute(reshape(x, shape), order);
}

UOp parts_joined(const UOp& x, int dim, int64_t size) {
  Dims shape(x.shape().begin() + 1, x.shape().end());
  Dims order;
  for (int i = 0; i < int(shape.size()); ++i) {
    if (i == dim) order.push_back(0);
    order.push_back(i + 1);
  }
  UOp joined = permute(x, order);
  shape[dim] *= x.shape()[0];
  joined = reshape(joined, shape);
  if (shape[dim] == size) return joined;
  Dims lo_hi;
  for (int64_t s : shape) lo_hi.insert(lo_hi.end(), {0, s});
  lo_hi[2 * dim + 1] = size;
  return shrink(joined, lo_hi);
}

}  // namespace tinyshard
