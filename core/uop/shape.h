// The shape rule of every op, applied when a node is made. Internal to core/uop.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// The shape of (op, src, arg); throws InternalError naming op, sources and argument when they do
// not fit. Users' mistakes are caught earlier, by Tensor, as UserError.
Dims infer_shape(Op op, std::span<const UOp> src, DimSpan arg);

struct Bounds {
  int64_t low, high;
};
// Smallest interval known to hold every value of an integer node; saturates at +-2^62.
Bounds infer_bounds(Op op, DType dtype, std::span<const UOp> src, DimSpan arg);

}  // namespace tinyshard
