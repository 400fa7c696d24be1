// Products and convolutions spelled out as loops, for what no library takes.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

// Every Dot and Conv* that `library_supports` refuses (asked with row-major operands) becomes
// expand, multiply and reduce. Sums run in the type of the result.
std::vector<UOp> lower_products(std::span<const UOp> roots,
                                const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
