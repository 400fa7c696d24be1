// Scans of rows that each device has whole: a divided row is gathered. The tensor API cuts long rows
// into the parts that devices have, and scans these (core/tensor/scan.cpp), so that little moves.
#include "core/rewrite/scan_spelling.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {

LocalValue scan_rows(const UOp& x, LocalValues& values) {
  const DimSpan global = x.src(0).shape();
  LocalValue v = settled(values.of(x.src(0)), global);
  // Constants lie on no device: each reader computes its part.
  if (!v.mesh) {
    v.local = spelled_scan(v.local, scan_arg(*x), {});
    return v;
  }
  v = without_shard(std::move(v), global, int(scan_arg(*x).axis));
  return rebuilt(x, {v}, v);
}

}  // namespace tinyshard
