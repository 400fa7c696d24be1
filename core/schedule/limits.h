// How much one kernel may hold. The generator keeps sets of ranges in the bits of a word, and the
// buffers of a launch go along with it. Lowering takes a value out of a kernel that holds too much,
// and kernels are not fused into one that would:
//
//   the norm of 70 parameters of other lengths    70 folds, a range each: some get kernels of their own
#pragma once
#include <cstddef>
#include <span>

#include "core/schedule/lower.h"

namespace tinyshard {

constexpr size_t kMostRanges = 64, kMostBuffers = 400;

// The ranges of a kernel that the generator numbers; those of size 1 are none.
size_t ranges_of(std::span<const UOp> nodes);

// Tells whether the generator takes a kernel of these nodes, which are all of the draft's.
bool fits_a_kernel(const KernelDraft& draft, std::span<const UOp> nodes);

}  // namespace tinyshard
