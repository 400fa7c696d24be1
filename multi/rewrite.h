// From global values to local ones: the graph that every device runs. Placements flow from leaves
// to roots, one rule per class of ops; wherever an op cannot work on its operands as they lie, the
// cheapest change of placement is put in between. Nothing else communicates.
#pragma once
#include <vector>

#include "core/uop/graph.h"
#include "multi/mesh.h"
#include "multi/movement_log.h"
#include "multi/planner.h"

namespace tinyshard {

struct LocalGraph {
  Graph graph;                      // shapes are local; Redistribute is gone
  std::vector<Sharding> shardings;  // of each root
  std::vector<Sharding> pending;    // and as its last op leaves it, sums not yet completed
  std::vector<bool> own;            // of code of shard_map: differs where it reads as replicated
  std::vector<PlacedValue> values;  // in the graph's order, where observers read records
  std::vector<Movement> movements;  // the same
};

// Roots that are pending sums are completed, unless they are assigned to a storage of terms.
// UserError where operands live on meshes that have nothing to do with each other.
//
// Alone: each op takes the cheapest way to run, which tells what a graph is like at little cost.
// Together: the planner looks for one that is cheaper for the whole graph; what runs is made so.
enum class Planning : uint8_t { Alone, Together };
LocalGraph to_local(const Graph& graph, Planning planning = Planning::Alone);

// Returns the cost of the graph by a plan, and its questions: for tests of the planner.
Tried try_plan(const Graph& graph, const Plan& plan);

}  // namespace tinyshard
