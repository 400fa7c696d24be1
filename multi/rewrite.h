// From global values to local ones: the graph that every device runs. Placements flow from leaves
// to roots, one rule per class of ops; wherever an op cannot work on its operands as they lie, the
// cheapest change of placement is put in between. Nothing else communicates.
#pragma once
#include <vector>

#include "multi/mesh.h"

namespace tinyshard {

struct LocalGraph {
  std::vector<UOp> roots;           // shapes are local; Redistribute is gone
  std::vector<Sharding> shardings;  // of each root
  std::vector<Sharding> pending;    // and as its last op leaves it, sums not yet completed
  std::vector<bool> own;            // of code of shard_map: differs where it reads as replicated
};

// Roots that are pending sums are completed, unless they are assigned to a storage of terms.
// UserError where operands live on meshes that have nothing to do with each other.
LocalGraph to_local(std::span<const UOp> roots);

}  // namespace tinyshard
