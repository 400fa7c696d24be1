// The parts of make_gpu_plan: sections that teams share (plan_teams.cpp), elementwise kernels
// (plan_maps.cpp). Internal to core/codegen/gpu.
#pragma once
#include <algorithm>
#include <bit>

#include "core/codegen/gpu/accesses.h"
#include "core/codegen/gpu/gpu_plan.h"

namespace tinyshard::codegen::gpu {

// How a plan differs from what the planner takes for the best.
struct Leaning {
  bool other_keeping = false;   // rows that would stay in registers do not, others do
  int threads = 0, chunks = 0;  // of a team or block, of a thread: times 2 to this power
  int64_t lean(int64_t x, int power) const {
    return power >= 0 ? x << power : std::max<int64_t>(1, x >> -power);
  }
};
Leaning leaning_of(int choice);

struct PlanContext {
  const Graph& graph;
  const Target& target;
  const Accesses& accesses;
  bool clusters;  // several blocks may share a team
  int warp;       // threads that run in step
  Leaning leaning;

  int64_t extent(std::span<const int> ranges) const {
    int64_t product = 1;
    for (int r : ranges) product *= graph.range(r).size;
    return product;
  }
  void count(Space& space) const { space.steps = extent(space.ranges) / space.lanes; }
};

// The sections that a team shares.
std::vector<Section*> shared_sections(Work& work);

// Teams, lanes and chunks of a work with shared sections.
void plan_teams(const PlanContext& context, Work& work);
// The same of a work without; what whole vectors leave of it becomes another one.
std::vector<Work> plan_maps(const PlanContext& context, Work work);

constexpr int kMostThreads = 1024, kBlock = 256;
constexpr int kThreadsOfMultiprocessor = 1024;  // enough to hide the latency of memory

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t power_up(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, x))));
}

}  // namespace tinyshard::codegen::gpu
