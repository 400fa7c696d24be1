// Decides how a kernel runs before any code is made: loop nests, where each Fold is computed, which
// range becomes vector lanes, how many rows share a vector (tiles), and what a work item is. Plain
// data over the Graph.
//
// A nest is a chain of scopes. Scope 0 has no range; every other scope opens one range and lies in
// its parent. A value is computed in the outermost scope of the chain in which all its ranges are
// open. Folds of equal ranges that do not need each other form a group and share loops:
//     root - i - [group: k] - j        max and sum over k per row i, then a store per (i, j)
#pragma once
#include <vector>

#include "core/codegen/extent.h"
#include "core/codegen/kernel_graph.h"
#include "core/runtime/target.h"

namespace tinyshard::codegen {

struct Scope {
  int parent = -1;
  int range = -1;
  int next = -1;   // the scope inside: the next loop, or the next range of the fold group
  int group = -1;  // of a fold's scope
  RangeSet open = 0;
  int lanes = 1;  // neighbouring values of `range` computed side by side, in one vector
  // A vector has the neighbours 0-3, 8-11, 16-19... in its first half, 4-7, 12-15... in the second.
  bool by_quads = false;
  bool unroll = false;      // a copy of the code for each value of `range`
  int tile = 1;             // values of `range` computed by copies of the code in one iteration
  Extent extent;            // the values of `range` that the loop has to run over
  std::vector<int> groups;  // fold groups computed here, in order, before `next` and the stores
  std::vector<int> stores;
};

struct FoldGroup {
  int scope = 0;            // where the results live
  int first = 0, last = 0;  // its own scopes, outermost and innermost
  std::vector<int> folds;
};

struct Nest {
  std::vector<Scope> scopes;
  std::vector<FoldGroup> groups;
  std::vector<int> loops;  // scopes of loops, outer to inner
  // Work items enumerate loops[0..item_loops) and, with chunk > 0, blocks of `chunk` values of
  // loops[item_loops].
  int item_loops = 0;
  int64_t chunk = 0;
  int64_t items = 1;
  double cost_ns = 0;

  // The outermost scope in the chain that ends at `scope` in which `node` can be computed.
  int place(const Graph& graph, int node, int scope) const;
  // The scope of that chain whose range makes a vector of `node`, or -1.
  int vector_scope(const Graph& graph, int node, int scope) const;
};

struct Plan {
  std::vector<Nest> nests;
  int64_t items = 0;
  int64_t min_items = 1;
  double cost_ns = 0;
  int64_t bytes_moved = 0;
};

// How a plan departs from what the estimates advise. Lanes and order of folds are those of the advised
// plan: all plans of a kernel give the same bits.
struct Leaning {
  int lanes = 0;         // of loops: doublings
  int tile = 0;          // of rows beside folds: doublings; where they become none, 1
  double item_size = 1;  // the least time of a work item that is worth a thread
};

// May merge ranges of the graph. `choice`: KernelSource's.
Plan make_plan(Graph& graph, const Target& target, int choice = 0);

// The nests alone: scopes, groups and stores, with nothing chosen yet.
std::vector<Nest> build_nests(const Graph& graph);
// The extents of all loops of a nest.
void find_extents(const Graph& graph, Nest& nest);

}  // namespace tinyshard::codegen
