// The node of a kernel's graph that stands in three of its ranges runs as often as their sizes multiply
// to; ops without an effect on speed (casts, arithmetic on places) are left out.
#include "core/codegen/operations.h"

#include <algorithm>

#include "core/codegen/kernel_graph.h"

namespace tinyshard {

using codegen::bit;
using codegen::Graph;

namespace {

double times(const Graph& graph, codegen::RangeSet varies) {
  double product = 1;
  for (int r = 0; r < graph.ranges(); ++r) {
    if (varies & bit(r)) product *= double(graph.range(r).size);
  }
  return product;
}

// Casts change no number that is worth counting, and places are no numbers.
bool counts(const Graph& graph, int n) {
  const codegen::KernelNode& x = graph[n];
  if (!is_elementwise(x.op) || x.op == Op::Cast || x.op == Op::Bitcast) return false;
  auto is_place = [&](int source) { return graph[source].dtype == DType::Index; };
  return x.dtype != DType::Index && !std::ranges::all_of(graph.sources(n), is_place);
}

}  // namespace

double operations_of(const KernelSource& kernel) {
  const Graph graph(kernel);
  double operations = 0;
  for (int n = 0; n < graph.size(); ++n) {
    if (graph[n].op == Op::Fold) {
      codegen::RangeSet terms = graph[graph.source(n, 0)].varies;
      for (int r : graph.fold_ranges(n).ranges) terms |= bit(r);
      operations += times(graph, terms);
    } else if (counts(graph, n)) {
      operations += times(graph, graph[n].varies);
    }
  }
  return operations;
}

}  // namespace tinyshard
