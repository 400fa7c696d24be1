// How values are ordered: by unsigned keys, which Op::Sort sorts. Of floats -0 equals 0, and NaN is
// the largest:
//
//   x        sign and magnitude    key
//   1.0f     3f800000              bf800000    positive: above all negative ones
//   -0, 0    00000000              80000000
//   -1.0f    bf800000              407fffff    negative: the larger the smaller
//   NaN                            ffffffff
//
// Values that have one key are equal, so a row of values that is sorted by its keys is known up to
// the signs of its zeros and the bits of its NaNs, whichever of the equal ones comes first.
#pragma once
#include "core/uop/args.h"

namespace tinyshard {

// Unsigned integers of x's size that are ordered as x is, or the other way round.
UOp sort_keys(const UOp& x, Sorting sorting);

// A constant that no value of the type comes after.
UOp last_in_order(DType type, Sorting sorting);

}  // namespace tinyshard
