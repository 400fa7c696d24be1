// Products store their results in the type in which these are read.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// A product of f32 that is only rounded to 16 bits rounds its sums itself, and one that a collective
// sends is what the collective reads, with no copy between: where `library_supports` takes the product
// so (asked with row-major operands) and nobody else reads it. The bits stay the same.
std::vector<UOp> narrow_products(const Graph& graph,
                                 const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
