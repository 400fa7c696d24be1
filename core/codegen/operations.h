// How much arithmetic a kernel does, for the summary of a plan.
#pragma once
#include "core/codegen/kernel.h"

namespace tinyshard {

// Counts each elementwise op on numbers and each term of a fold, as often as it runs; masks do not
// spare it. Computing places in memory counts nothing, comparing a place with what an index says does:
//
//   a [4096, 64] sum of rows     262144
//   to scatter 1000 rows into 500 of them, by looking at all pairs     500000 comparisons and as many sums
double operations_of(const KernelSource& kernel);

}  // namespace tinyshard
