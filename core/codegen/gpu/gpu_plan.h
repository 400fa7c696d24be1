// Decides how the threads of a GPU share a kernel: which loops are enumerated by blocks and teams
// of threads, which ranges the threads of a team share, how many neighbouring elements a thread
// takes at once, and what stays in registers. Plain data over the Graph, like core/codegen/plan.h,
// whose nests it starts from.
//
// The outer loops of a nest are its items. Each step of the items belongs to one team; the threads
// of a team share the fold ranges and the loops behind the items (the sections), each taking every
// team-th step:
//     elementwise        items i, j          teams of one thread
//     softmax of rows    items i             team over [max: f], [sum: g], j
//     sums of columns    items j             team over [sum: f], neighbouring threads on other
//     items
#pragma once
#include <vector>

#include "core/codegen/kernel_graph.h"
#include "core/codegen/plan.h"

namespace tinyshard::codegen::gpu {

// The values of several ranges, enumerated as one line of steps. A step is `lanes` neighbouring
// values of the innermost range, which starts at `begin`; a thread takes `chunks` steps side by
// side.
struct Space {
  std::vector<int> ranges;  // outer to inner
  int lanes = 1;
  int chunks = 1;
  int64_t steps = 1;
  int64_t begin = 0;
  int64_t rounds(int threads) const {
    int64_t together = int64_t{chunks} * threads;
    return (steps + together - 1) / together;
  }
};

struct Section {
  Space space;
  std::vector<int> groups;  // fold groups computed in it, before what is inside
  std::vector<int> stores;  // done in it, after what is inside
};

// A transpose through shared memory: tiles of edge x edge values of two loops. `staged` loads and
// stores are contiguous along `across`, all other accesses along `along`.
struct Tile {
  int along = -1, across = -1;
  int edge = 32;
  int lanes_along = 1, lanes_across = 1;
  std::vector<int> staged;
};

// A loop of which one value matters, the place of a row that is written: it is no loop then.
struct FixedLoop {
  int range;
  RangeBound value;
};

struct Work {
  Nest nest;
  std::vector<FixedLoop> fixed;
  Section items;
  std::vector<Section> inner;               // loops behind the items, outer to inner
  std::vector<std::vector<Section>> folds;  // by group: its ranges, outer to inner
  int teams = 1;                            // of a block
  int team = 1;                             // threads; a power of two, as is `teams`
  // Blocks that share their teams' steps, where there are few items: a cluster of blocks, which
  // read each other's shared memory. Of a kernel with one work only.
  int cluster = 1;
  bool items_fastest = true;  // neighbouring threads have neighbouring items, not one item
  // All sections have the same steps and each thread holds its part of them in registers: what one
  // section loads or computes is used again by the next ones.
  bool kept = false;
  Tile tile;  // instead of items_fastest teams, when tile.staged is not empty
  int64_t blocks = 1;
  // By node: the first one of the same value once the ranges of kept sections are one.
  std::vector<int> same;
};

struct GpuPlan {
  std::vector<Work> works;
  int block = 32;  // threads
  int cluster = 1;
  int64_t blocks = 0;
  double cost_ns = 0;
  int64_t bytes_moved = 0;
};

// May merge ranges of the graph. `choice`: KernelSource's.
GpuPlan make_gpu_plan(Graph& graph, const Target& target, int choice);

// By node: the first node of equal value when `range_class[r]` names the range that stands for r.
std::vector<int> number_values(const Graph& graph, std::span<const int> range_class);

// Threads of the target that run in step (dialect.h).
int warp_of(const Target& target);
bool has_clusters(const Target& target);  // blocks that share their memory

}  // namespace tinyshard::codegen::gpu
