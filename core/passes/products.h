// Products and convolutions spelled out as loops, for what no library takes.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/runtime/profile.h"
#include "core/uop/graph.h"

namespace tinyshard {

// Every Dot and Conv* that `library_supports` refuses (asked with row-major operands) becomes
// expand, multiply and reduce, as plain small products do. Sums run in the type of the result,
// those of 16-bit floats in f32; a convolution of these becomes one of f32 where a library takes
// that.
std::vector<UOp> lower_products(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports,
                                SmallProducts small = {});

}  // namespace tinyshard
