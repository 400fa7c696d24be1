// A graph on its way through the passes: its roots, and the order of all its nodes, which is looked
// for when it is first asked for and stays known as long as the roots are the same.
//
//   Graph graph(roots);
//   graph.become(fold_empties(graph));      walks graph.order(), changes nothing
//   graph.become(lower_sorts(graph, ..));   walks the same list
//
// To walk a list of nodes takes a fraction of what finding it takes: the nodes of a large graph do
// not fit the cache, and each would be waited for before its sources are known.
//
// Threads: a graph belongs to one.
#pragma once
#include <concepts>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

class Graph {
 public:
  Graph() = default;
  // Functions that take a graph take roots alone, too.
  Graph(std::vector<UOp>&& roots) : roots_(std::move(roots)) {}
  template <std::convertible_to<std::span<const UOp>> Roots>
  Graph(const Roots& roots) {
    const std::span<const UOp> given = roots;
    roots_.assign(given.begin(), given.end());
  }

  const std::vector<UOp>& roots() const { return roots_; }
  // Sources before users (toposort).
  const NodeOrder& order() const {
    if (!order_) order_ = toposort(roots_);
    return *order_;
  }
  // The graph of other roots, or of the same.
  void become(std::vector<UOp> roots) {
    if (roots == roots_) return;
    order_.reset();
    roots_ = std::move(roots);
  }

 private:
  std::vector<UOp> roots_;
  mutable std::optional<NodeOrder> order_;  // which the roots keep
};

// The graph of x without the work that it, or a value in it, only waits for: every After(a, b) is a.
// Whoever asks about one value of a long step asks about that value's own graph.
//
//   after(neg a, sqrt b) * after(a, sqrt b)     ->     neg a * a
UOp without_waits(const UOp& x);

// The roots without names, in graphs as the builders of core/uop/uop.h would have made them.
std::vector<UOp> without_names(const Graph& graph);

}  // namespace tinyshard
