// A scan stays whole where a device computes it in one call, and its row is worth that; else it is
// spelled (core/rewrite/scan_spelling.cpp).
#include "core/passes/scans.h"

#include "core/rewrite/pattern.h"
#include "core/rewrite/scan_spelling.h"

namespace tinyshard {

std::vector<UOp> lower_scans(const Graph& graph,
                             const std::function<bool(const LibraryCall&)>& library_supports,
                             const ScanLimits& limits) {
  return rewrite_once(graph, [&](const UOp& x) {
    if (x.op() != Op::Scan) return UOp();
    if (x.shape()[scan_arg(*x).axis] > limits.pairs && library_supports(row_major_call(x)))
      return UOp();
    const ScanArg arg = scan_arg(*x);
    return spelled_scan(x.src(0), arg,
                        limits.short_chunks ? short_chunks(x, arg.kind) : ScanChunks());
  });
}

}  // namespace tinyshard
