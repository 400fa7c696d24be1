// Scattered sums that something is added to: the gradient of a table that is also a layer's weight.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

// x + scatter_add(index, rows) becomes scatter_add(index, rows, x): one item that writes the result
// once, instead of one that fills zeros and another that reads all of them back. Only where x is in
// memory anyway (a storage or what a library or a collective made, widened or not), nobody else
// reads the scatter, and `library_supports` takes it (asked with row-major operands).
std::vector<UOp> start_scatters(std::span<const UOp> roots,
                                const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
