// Independent kernels as one launch: the updates of all parameters, the roundings of all weights,
// the partial norms of all gradients. Each keeps its own loops; a GPU gives each its own blocks of
// one grid. For devices where a launch costs more than such a kernel's work.
#pragma once
#include <vector>

#include "core/schedule/merge.h"

namespace tinyshard {

// Joins kernels over the same sizes that neither make values live longer nor wait for each other:
// those that read storages only, those that write storages only (and what collectives send of
// them), and those that make little of values which are read later again. Expects merge_kernels to
// have run.
void join_kernels(std::vector<Task>& tasks, const std::vector<VirtualBuffer>& buffers);

}  // namespace tinyshard
