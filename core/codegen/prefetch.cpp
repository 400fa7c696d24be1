// The loops around a load are gone through from the inside, and the first in which enough bytes pass
// tells the distance. Of rows of 768 bf16 in steps of 64, as in the header:
//
//   k    128 bytes an iteration, 32 of them ahead are 4 KiB; 12 iterations are too few for that
//   i    1536 bytes an iteration, 3 of them ahead are 4608 bytes: of 24 rows or more, the answer
#include "core/codegen/prefetch.h"

#include <algorithm>

namespace tinyshard::codegen {
namespace {

constexpr int64_t kAhead = 4 << 10;     // bytes under way at a time: a few times latency by rate
constexpr int64_t kWorth = 256 << 10;   // smaller buffers lie in a cache of the core
constexpr int64_t kOften = 4;           // what is read more often than this lies in one, too
constexpr int64_t kLongRow = 8;         // iterations
constexpr int64_t kFarthest = 1 << 20;  // elements; steps beyond it are not neighbours in any sense

int64_t iterations(const Graph& graph, const Scope& scope) {
  if (scope.extent.one_value()) return 1;
  const int64_t step = int64_t{scope.lanes} * scope.tile;
  return (graph.range(scope.range).size + step - 1) / step;
}

// Elements between what an index names in one iteration of the scope and in the next; 0 where
// that is not the same for all.
int64_t step_of(const Graph& graph, int index, const Scope& scope) {
  int64_t step = 0;
  for (const Form::Term& term : graph.form(index).terms) {
    if (term.node == graph.range(scope.range).node) {
      step = term.coefficient * scope.lanes * scope.tile;
    } else if (graph[term.node].varies & bit(scope.range)) {
      return 0;
    }
  }
  return step;
}

}  // namespace

int64_t prefetch_distance(const Graph& graph, const Nest& nest, int load, int place, int lanes) {
  const ParamInfo& param = graph.param(graph.slot(load));
  const auto item = static_cast<int64_t>(itemsize(param.dtype));
  if (param.numel * item < kWorth || nest.scopes[static_cast<size_t>(place)].group < 0) return 0;
  const int index = graph.source(load, 1);
  if (graph[index].has_load) return 0;
  int64_t bytes = lanes * item, reads = lanes;  // of one iteration of the scope at hand; of all
  for (int s = place; s > 0; s = nest.scopes[static_cast<size_t>(s)].parent) {
    const Scope& scope = nest.scopes[static_cast<size_t>(s)];
    if (graph[index].varies & bit(scope.range)) bytes *= scope.tile;
    reads *= iterations(graph, scope) * scope.tile;
  }
  if (reads > kOften * param.numel) return 0;
  // Long rows of wider elements come at the full rate of memory by themselves: what is under way in
  // the processor covers enough of them.
  const Scope& row = nest.scopes[static_cast<size_t>(place)];
  if (item > 2 && row.lanes > 1 && iterations(graph, row) >= kLongRow) return 0;
  int64_t distance = 0;
  for (int s = place; s > 0; s = nest.scopes[static_cast<size_t>(s)].parent) {
    const Scope& scope = nest.scopes[static_cast<size_t>(s)];
    const int64_t count = iterations(graph, scope);
    if (count == 1 || !(graph[index].varies & bit(scope.range))) continue;
    const int64_t step = step_of(graph, index, scope), ahead = (kAhead + bytes - 1) / bytes;
    if (step <= 0 || step * ahead > kFarthest) break;
    distance = ahead * step * item;
    // The first iterations read elements that nobody has prefetched. That is fine if they are few
    // among many.
    if (count >= 8 * ahead) break;
    bytes *= count;
  }
  return distance;
}

}  // namespace tinyshard::codegen
