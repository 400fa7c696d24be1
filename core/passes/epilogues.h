// What follows a product, done by the product: the narrowing of its sums, a bias, ReLU, GELU,
// GELU's gradient, and the store of what a collective sends. The values before a GELU, which its
// gradient needs, come from the same call; that of a ReLU needs the result alone.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

// Rewrites only what `library_supports` takes (asked with row-major operands) and what no other
// node reads halfway. A result that was rounded before its bias was added is now rounded once.
std::vector<UOp> fuse_epilogues(std::span<const UOp> roots,
                                const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
