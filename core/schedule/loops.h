// In which order the loops of a kernel are nested.
#pragma once
#include <span>

#include "core/schedule/lower.h"

namespace tinyshard {

// Orders the loops so that every fold is computed once: the loops that a fold depends on come
// first. Returns the fold that cannot be placed like that (or would leave too little parallel
// work, unless `serial` allows that), or a stored value that cannot; null when all is well.
// `nodes`: all_nodes of the draft.
UOp arrange_loops(KernelDraft& draft, std::span<const UOp> nodes, FreeRanges& free_ranges,
                  bool serial = false);

// Elements of a nest of these ranges.
int64_t size_of(std::span<const UOp> ranges);

bool contains(std::span<const UOp> list, const UOp& x);

}  // namespace tinyshard
