// Values that only hold the elements of others, each once: a transpose, a concatenation. The kernel
// that produces a part can then write it directly into its place in the whole.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "core/runtime/strided_view.h"
#include "core/uop/uop.h"

namespace tinyshard {

struct Part {
  UOp value;
  StridedView view;  // where its elements lie in the whole, which is row-major
};

// The parts of `whole`, where each of its elements is one element of one part and each element of a
// part is there once; nothing where that is not so. Looks through reshapes, permutations, and sums
// and concatenations of what is padded into boxes that do not overlap and cover all, down to what
// `ends` accepts.
std::optional<std::vector<Part>> parts_of(const UOp& whole,
                                          const std::function<bool(const UOp&)>& ends);

}  // namespace tinyshard
