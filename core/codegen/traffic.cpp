// An access reaches as many elements as its index has values, which are no more than the ranges that
// the index varies with have together:
//
//   store p0 [i * 64 + j], load p1 [load p2 [i] * 64 + j]        i (2), j (64)
//
// reads 2 elements of p2 and 128 of p1, however large p1 is.
#include "core/codegen/traffic.h"

#include <algorithm>

#include "core/base/sizes.h"
#include "core/codegen/extent.h"
#include "core/codegen/kernel_graph.h"

namespace tinyshard {

using codegen::bit;
using codegen::Graph;

namespace {

// Returns how many values of each range matter: one, if the masks around all that varies with it
// admit no more.
std::vector<int64_t> values_of_ranges(const Graph& graph) {
  std::vector<std::vector<int>> folds(static_cast<size_t>(graph.ranges()));
  for (int n = 0; n < graph.size(); ++n) {
    if (graph[n].op != Op::Fold) continue;
    for (int r : graph.fold_ranges(n).ranges) folds[r].push_back(n);
  }
  std::vector<int64_t> values;
  for (int r = 0; r < graph.ranges(); ++r) {
    std::vector<int> stores;
    for (int s : graph.stores()) {
      if (graph[s].varies & bit(r)) stores.push_back(s);
    }
    const bool one = graph.range(r).fold ? extent_of_folds(graph, folds[r], r).one_value()
                                         : extent_of_stores(graph, stores, r).one_value();
    values.push_back(one ? 1 : graph.range(r).size);
  }
  return values;
}

}  // namespace

std::vector<ParamTraffic> traffic_of(const KernelSource& kernel) {
  const Graph graph(kernel);
  const std::vector<int64_t> values = values_of_ranges(graph);
  std::vector<ParamTraffic> traffic(kernel.params.size());
  for (int n = 0; n < graph.size(); ++n) {
    const bool stores = graph[n].op == Op::Store;
    if (!stores && graph[n].op != Op::Load) continue;
    const ParamInfo& param = kernel.params[graph.slot(n)];
    const codegen::RangeSet varies = graph[graph.source(n, 1)].varies;
    int64_t elements = 1;
    for (int r = 0; r < graph.ranges(); ++r) {
      if (varies & bit(r)) elements = multiply_sizes(elements, values[r]);
    }
    ParamTraffic& of_param = traffic[graph.slot(n)];
    int64_t& bytes = stores ? of_param.bytes_written : of_param.bytes_read;
    const auto size = static_cast<int64_t>(itemsize(param.dtype));
    bytes = std::min(bytes + std::min(elements, param.numel) * size, param.numel * size);
  }
  return traffic;
}

}  // namespace tinyshard
