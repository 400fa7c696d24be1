// Ranges of size 1 are left out, as the generator drops them before it numbers the others. Callers
// give the nodes, which they have walked already.
#include "core/schedule/limits.h"

#include <algorithm>

#include "core/uop/args.h"

namespace tinyshard {

size_t ranges_of(std::span<const UOp> nodes) {
  return size_t(std::ranges::count_if(
      nodes, [](const UOp& x) { return x.op() == Op::Range && range_arg(*x).size != 1; }));
}

bool fits_a_kernel(const KernelDraft& draft, std::span<const UOp> nodes) {
  return ranges_of(nodes) <= kMostRanges &&
         draft.slots.size() + draft.outputs.size() <= kMostBuffers;
}

}  // namespace tinyshard
