// Independent kernels as one launch: the updates of all parameters, the roundings of all weights,
// the partial norms of all gradients. Each keeps its own loops; a GPU gives each its own blocks of
// one grid. For devices where a launch costs more than such a kernel's work.
#pragma once

namespace tinyshard {

struct ScheduleState;

// Joins kernels over the same sizes that neither make values live longer nor wait for each other:
// those that read storages only, those that write storages only (and what collectives send of
// them), and reductions to small results whose operands stay alive anyway, so that delaying them
// costs no memory. Does nothing unless ScheduleOptions::join_kernels says that launches are dear.
void fuse_horizontally(ScheduleState& state);

}  // namespace tinyshard
