// Arithmetic on constants, with the semantics of generated kernels: integers wrap, IDiv and Mod
// truncate (floor on Index), f32 rounds to f32, f16 and bf16 compute in f32 and round once.
#pragma once
#include <span>

#include "core/uop/uop.h"

namespace tinyshard {

// The Const that `op` gives over constant sources; null when a source is not a Const or the result
// is not defined (division by zero, a shift by the width, a float outside of an integer's range).
UOp fold_constants(Op op, DType dtype, std::span<const UOp> src);

// The scalar that a reduction of nothing gives: exactly, for integers of 64 bits too.
UOp identity_of(ReduceOp op, DType dtype);

// The scalar that a reduction of `count` > 0 times the constant gives, rounded once: a sum of 2^25
// ones in f32 is 2^25, which adding them one after the other would not reach.
UOp fold_reduction(ReduceOp op, const UOp& constant, int64_t count);

}  // namespace tinyshard
