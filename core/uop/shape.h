// The shape rule of every op and the limits of sizes, applied when a node is made.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// The shape of a node of these parts, which lies in `src`, `arg` or `room`: most ops take it from
// there as it is. Throws InternalError naming op, sources and argument when they do not fit. Users'
// mistakes are caught earlier, by Tensor, as UserError.
DimSpan infer_shape(Op op, DType dtype, std::span<const UOp> src, DimSpan arg, const void* payload,
                    Dims& room);

// Shapes have at most so many dims.
inline constexpr size_t kMaxRank = 64;
// Fails the running call (UserError) when a dim is negative, when there are too many dims, or when
// elements or bytes reach kSizeLimit. Every node passes it; who computes with the dims before there
// is a node asks first.
void check_size(DimSpan shape, DType dtype);

struct Bounds {
  int64_t low, high;
};
// Smallest interval known to hold every value of an integer node; saturates at +-2^62.
Bounds infer_bounds(Op op, DType dtype, std::span<const UOp> src, DimSpan arg);

}  // namespace tinyshard
