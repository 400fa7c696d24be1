// Sorts for a library, or as ordinary ops.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// Up to how many elements a row is sorted by comparing all pairs, in one kernel: where a library
// would sort it, and where a network of kernels would. On a CPU with AVX-512 pairs take 0.14 ns
// each, and radix takes 16 ns for each of 128 elements, 11 for each of 512.
struct SortLimits {
  int64_t pairs_before_library = 96;
  int64_t pairs_before_network = 512;
};

// Replaces each Sort of rows within the limits, or that `library_supports` refuses (asked with
// row-major operands). The permutation is the same whichever way is taken: there is one stable one.
std::vector<UOp> lower_sorts(const Graph& graph,
                             const std::function<bool(const LibraryCall&)>& library_supports,
                             SortLimits limits);

}  // namespace tinyshard
