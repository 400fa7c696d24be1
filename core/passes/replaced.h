// Puts what finders found in place of nodes of a graph.
#pragma once
#include <span>
#include <vector>

#include "core/runtime/library_provider.h"

namespace tinyshard {

// The roots of the graph in which each replacement stands for its node, also where other replacements
// read the node; of two for one node the first counts. A reshape of a reshape becomes one.
std::vector<UOp> replaced(const Graph& graph, std::span<const Replacement> found);

}  // namespace tinyshard
