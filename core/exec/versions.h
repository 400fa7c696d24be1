// Values that share a storage although each is a value of its own: two handles of one node, of
// which one is assigned to; or both.
#pragma once
#include <vector>

#include "core/uop/graph.h"

namespace tinyshard {

// The roots, in a graph in which each storage is one chain of versions and holds the last one when
// the graph has run: of several Assigns to one version, that of the storage's holder, or else the
// first, keeps the storage and the others write to new ones; and a root that another Assign writes
// over becomes a value of its own.
//   b = c.reshape(c.shape()); c.assign(c + 1)      roots c, %2 = assign %1 (%1 + 1); and b, %1
// gives the roots %2 and contiguous %1.
std::vector<UOp> separate_versions(const Graph& graph);

}  // namespace tinyshard
