// What follows a product, done by the product: the narrowing of its sums, a bias, ReLU, GELU,
// GELU's gradient, and the store of what a collective sends. The values before a GELU, which its
// gradient needs, come from the same call; that of a ReLU needs the result alone.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// Rewrites only what `library_supports` takes (asked with row-major operands) and what no other
// node reads halfway. A GELU, and its gradient, read sums that are not rounded to 16 bits before,
// as the libraries have it; every other epilogue gives the bits of the ops that it stands for, but
// for the order of the sums.
std::vector<UOp> fuse_epilogues(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
