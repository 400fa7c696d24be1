// Where the operands of products lie.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// Tells whether elements that are neighbours in the last dim of x lie side by side, as far as its
// views tell.
bool runs_along_last(const UOp& x);

// Break-even size, in elements, of copying one operand of a product into a layout whose last dim is
// the summed one, the other operand left as it is.
using WorthCopying = std::function<int64_t(const LibraryCall&, int operand)>;

// Libraries may take far longer for operands that do not lie along the sum of a product. They are
// copied where that is worth it: the smaller one first, and of two alike the one that is there
// first.
std::vector<UOp> lay_along_sums(const Graph& graph, const WorthCopying& worth_copying);

}  // namespace tinyshard
