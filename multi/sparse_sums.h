// Sums over devices in which few rows take part. The gradient of an embedding has a row for each
// entry of the table, and a batch touches as many as it has tokens. Instead of an all-reduce of all
// rows, an all-gather brings every device the tokens' gradients, and each scatters all of them:
//
//   all_reduce(scatter_add(index, rows)) = scatter_add(all_gather(index), all_gather(rows))
//
// Not where a dense term joins the sum (the table is the last layer's weight too): its all-reduce is
// needed anyway, so that gathering would only add traffic.
#pragma once
#include <vector>

#include "core/uop/graph.h"

namespace tinyshard {

// Works on local graphs. Rewrites those sums for which gathering brings at most half of the bytes
// that the result has.
std::vector<UOp> gather_sparse_sums(const Graph& graph);

}  // namespace tinyshard
