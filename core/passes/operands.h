// Where the operands of products lie.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

// Whether elements that are neighbours in the last dim of x lie side by side, as far as its views
// tell.
bool runs_along_last(const UOp& x);

// How many elements are worth copying for one operand of a product to lie along its sum, the other
// one lying as it does.
using WorthCopying = std::function<int64_t(const LibraryCall&, int operand)>;

// Libraries may take far longer for operands that do not lie along the sum of a product. They are
// copied where that is worth it: the smaller one first, and of two alike the one that is there
// first.
std::vector<UOp> lay_along_sums(std::span<const UOp> roots, const WorthCopying& worth_copying);

}  // namespace tinyshard
