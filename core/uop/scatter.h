// A ScatterAdd reduces so where several elements meet.
#pragma once
#include "core/uop/args.h"
#include "core/uop/uop.h"

namespace tinyshard {

inline ReduceOp scatter_op(const UOp& x) { return scatter_arg(*x).op; }

// Tells whether x counts its elements along `axis` from one: 1 2 3.., the same for all other places. A
// scattered maximum of such numbers is that of the last entry which names a place.
bool counts_from_one(UOp x, size_t axis);

}  // namespace tinyshard
