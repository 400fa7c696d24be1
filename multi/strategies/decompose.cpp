// Decompositions of matrices. Matrices of a divided batch are decomposed where they lie; one that is
// divided itself is gathered.
#include "multi/strategies/strategies.h"

namespace tinyshard {

LocalValue decompose(const UOp& x, LocalValues& values) {
  const DimSpan global = x.src(0).shape();
  const int last = int(global.size()) - 1;
  LocalValue v = settled(values.of(x.src(0)), global);
  for (const int dim : {last - 1, last}) v = without_shard(std::move(v), global, dim);
  return rebuilt(x, {v}, v);
}

}  // namespace tinyshard
