// The graph is rebuilt in one walk, sources before users. A replacement is an expression over nodes of
// the graph as they were; it is built again over what these have become:
//
//   %2 by region(%0, %1)       %4 by region(%2, %3)       the second one reads the first one's result
#include "core/passes/replaced.h"

#include <utility>

#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

class Rebuilding {
 public:
  explicit Rebuilding(std::span<const Replacement> found) : by_(found.size()) {
    for (const Replacement& r : found) {
      if (!by_.contains(r.node)) by_[r.node] = r.by;
    }
  }

  std::vector<UOp> of(const Graph& graph) {
    made_ = NodeMap<UOp>(graph.order().size());
    for (const UOp& x : graph.order()) {
      const UOp* by = by_.find(x);
      made_[x] = by ? now(*by) : over_made(x);
    }
    std::vector<UOp> roots;
    for (const UOp& root : graph.roots()) roots.push_back(made_.at(root));
    return roots;
  }

 private:
  // An expression over what the nodes of the graph have become.
  UOp now(const UOp& x) {
    if (const UOp* found = made_.find(x)) return *found;
    for (const UOp& s : x->src()) {
      if (!made_.contains(s)) made_[s] = now(s);
    }
    return over_made(x);
  }
  UOp over_made(const UOp& x) {
    if (x.op() == Op::Reshape) return reshape(made_.at(x.src(0)), x.shape());
    src_.clear();
    for (const UOp& s : x->src()) src_.push_back(made_.at(s));
    return x.with_src(src_);
  }

  NodeMap<UOp> by_, made_;
  std::vector<UOp> src_;
};

}  // namespace

std::vector<UOp> replaced(const Graph& graph, std::span<const Replacement> found) {
  return found.empty() ? graph.roots() : Rebuilding(found).of(graph);
}

}  // namespace tinyshard
