// A total order of nodes by structure, the same in every process that built the same expressions
// (addresses and creation order play no part). Sorts the terms of sums and of conditions.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// Negative, zero (the same node) or positive. Constants come last, ranges in order of their ids.
int compare_structure(const UOp& a, const UOp& b);

}  // namespace tinyshard
