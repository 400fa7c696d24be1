// Scattered sums whose index is known when they are planned, and does not fall: the gradients of what an
// interpolation or a lookup of positions reads. The entries of a place are then a stretch of neighbours.
#pragma once
#include <vector>

#include "core/uop/graph.h"

namespace tinyshard {

// Reads the stretch of each place in place of a scatter, where that reads little more than there is. Each
// place adds its entries in their order, in the type in which a scatter adds, and rounds once.
std::vector<UOp> gather_known_scatters(const Graph& graph);

}  // namespace tinyshard
