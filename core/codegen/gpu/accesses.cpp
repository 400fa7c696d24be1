// Loads and stores of a nest, found from its stores down, and questions about them. Example: of
// out[i, j] = x[j, i], the store is contiguous along j and the load along i; for 1024 x 1024 f32 the
// score of j is 8 MiB, as stores count double, and that of i 4 MiB.
#include "core/codegen/gpu/accesses.h"

#include <algorithm>

namespace tinyshard::codegen::gpu {

Accesses::Accesses(const Graph& graph, const Nest& nest) : graph_(graph) {
  std::vector<char> seen(static_cast<size_t>(graph.size()));
  std::vector<int> stack;
  for (const Scope& scope : nest.scopes) {
    stack.insert(stack.end(), scope.stores.begin(), scope.stores.end());
    if (scope.extent.one_value()) single_ |= bit(scope.range);
  }
  while (!stack.empty()) {
    int node = stack.back();
    stack.pop_back();
    if (seen[static_cast<size_t>(node)]) continue;
    seen[static_cast<size_t>(node)] = 1;
    if (graph[node].op == Op::Load || graph[node].op == Op::Store) accesses_.push_back(node);
    for (int source : graph.sources(node)) stack.push_back(source);
  }
  std::sort(accesses_.begin(), accesses_.end());
}

int64_t Accesses::bytes(int access) const {
  return static_cast<int64_t>(itemsize(graph_.param(graph_.slot(access)).dtype));
}
bool Accesses::contiguous(int access, int range) const {
  return graph_.lane_stride(graph_.source(access, 1), range, 2) == 1;
}

double Accesses::contiguity(int range) const {
  double score = 0;
  for (int access : accesses_) {
    if (!contiguous(access, range)) continue;
    double moved = static_cast<double>(bytes(access)) * (graph_[access].op == Op::Store ? 2 : 1);
    for (int r = 0; r < graph_.ranges(); ++r) {
      if (graph_[access].varies & ~single_ & bit(r))
        moved *= static_cast<double>(graph_.range(r).size);
    }
    score += moved;
  }
  return score;
}

bool Accesses::near(int range, int64_t most) const {
  return std::ranges::all_of(accesses_, [&](int access) {
    if ((graph_[access].varies & bit(range)) == 0) return true;
    const std::optional<int64_t> stride = graph_.lane_stride(graph_.source(access, 1), range, 2);
    return stride && std::abs(*stride) <= most;
  });
}

// Tells whether `lanes` neighbours along `range` are one aligned piece, of which all or none is.
bool Accesses::whole_vector(int access, int range, int lanes) const {
  int index = graph_.source(access, 1);
  if (graph_.lane_stride(index, range, lanes) != 1) return false;
  if (graph_.alignment(index, range, lanes) % lanes != 0) return false;
  bool masked = graph_[access].op == Op::Load && graph_[access].source_count > 2 &&
                (graph_[graph_.source(access, 2)].varies & bit(range)) != 0;
  bool checked = graph_[index].has_load && graph_.param(graph_.slot(access)).numel % lanes != 0;
  return !masked && !checked;
}

int Accesses::lanes_along(std::span<const int> accesses, int range, bool whole) const {
  int64_t size = graph_.range(range).size;
  for (int lanes = static_cast<int>(kWidest); lanes > 1; lanes /= 2) {
    if (whole && size % lanes != 0) continue;
    int64_t good = 0, bad = 0, narrowest = kWidest;
    for (int access : accesses) {
      if (!(graph_[graph_.source(access, 1)].varies & bit(range))) continue;
      if (whole_vector(access, range, lanes)) {
        good += bytes(access);
        narrowest = std::min(narrowest, bytes(access));
      } else {
        bad += bytes(access);
      }
    }
    if (good > 0 && good >= bad && lanes * narrowest <= kWidest) return lanes;
  }
  return 1;
}

}  // namespace tinyshard::codegen::gpu
