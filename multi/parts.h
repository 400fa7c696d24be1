// Dims as the parts that the devices of an axis hold or receive, and back.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// [.., P * k, ..] -> [P, .., k, ..], padding the dim where it does not divide.
UOp parts_first(const UOp& x, int dim, int64_t parts);

// [P, .., k, ..] -> [.., P * k, ..], cut to `size`.
UOp parts_joined(const UOp& x, int dim, int64_t size);

}  // namespace tinyshard
