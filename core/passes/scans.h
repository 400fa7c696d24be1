// Scans for a library, or as ordinary ops.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

struct ScanLimits {
  // Up to so many elements a row is scanned by all pairs, inside of the kernels around it.
  int64_t pairs = 8;
  bool short_chunks = false;  // where scans are spelled (core/rewrite/scan_spelling.h)
};

// Spells each Scan of rows within the limits, or that `library_supports` refuses (asked with row-major
// operands).
std::vector<UOp> lower_scans(const Graph& graph,
                             const std::function<bool(const LibraryCall&)>& library_supports,
                             const ScanLimits& limits);

}  // namespace tinyshard
