// The form in which the terms of a pending reduction travel. Transports differ in what they reduce:
// NCCL's Max and Min pass over NaN, which ours must not, and it knows no integers of 16 bits. So
// these travel as integers of 32 or 64 bits, which every transport reduces alike: floats as
// integers that are ordered as they are, with NaN beyond all others. The conversions are
// elementwise, and so part of the kernels before and after the collective.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// Convert x to the form that travels, and the result back to its type. Most travel as they are.
UOp to_wire(const UOp& x, ReduceOp op);
UOp from_wire(const UOp& reduced, DType dtype, ReduceOp op);
DType wire_type(DType type, ReduceOp op);

}  // namespace tinyshard
