// The libraries of a device compute more in one call than an op of the graph: products that take in
// what follows them (core/uop/product_region.h). A provider belongs to the folder of a maker, knows the
// regions of its library and finds them; the passes ask those of all devices that a plan computes on
// (core/passes/passes.cpp, `epilogues` and `updates`) and rebuild the graph once.
//
//   class Negations final : public LibraryProvider {      // for -(a @ b)
//     std::vector<Replacement> find(const RegionQuery& q) const override {
//       std::vector<Replacement> found;
//       for (const UOp& x : q.graph().order()) {
//         if (x.op() != Op::Neg || x.src(0).op() != Op::Dot || q.uses().at(x.src(0)) > 1) continue;
//         UOp product = region_product(kNegated, ..);
//         if (q.supports(row_major_call(product))) found.push_back({x, product});
//       }
//       return found;
//     }
//   };
//
// Threads: one provider answers for several graphs at once.
#pragma once
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/composite.h"
#include "core/uop/graph.h"
#include "core/uop/node_map.h"

namespace tinyshard {

// A graph in which products are looked for, and what is known of it.
class RegionQuery {
 public:
  using Supports = std::function<bool(const LibraryCall&)>;
  using Tidied = std::function<std::vector<UOp>(const Graph&)>;
  RegionQuery(const Graph& graph, const Supports& supports, Tidied tidied)
      : graph_(graph), supports_(supports), tidied_(std::move(tidied)) {}

  const Graph& graph() const { return graph_; }
  // Tells whether each device of the plan takes the call, by Device::supports.
  bool supports(const LibraryCall& call) const { return supports_(call); }
  // Returns for each node how often it is a source of another one or a root.
  const NodeMap<int>& uses() const {
    if (!uses_) uses_ = count_uses(graph_.order(), graph_.roots());
    return *uses_;
  }
  // The form in which an expression that somebody writes is found in the graph: what passes before
  // leave of it.
  UOp tidied(const UOp& x) const { return tidied_(std::span(&x, 1))[0]; }

 private:
  const Graph& graph_;
  const Supports& supports_;
  Tidied tidied_;
  mutable std::optional<NodeMap<int>> uses_;
};

// A node of the graph, and an expression of the same value, type and shape. What of the graph that
// reads comes before the node.
struct Replacement {
  UOp node, by;
};

class LibraryProvider {
 public:
  virtual ~LibraryProvider() = default;

  // Nodes that become products with a region, where `supports` takes these, asked with row-major
  // operands, and where no other node reads what is then in no memory. A region that is found may
  // still be spelled out again.
  virtual std::vector<Replacement> find(const RegionQuery& query) const = 0;
  // Finds regions that are computed in place, of the products that are not loops by then.
  virtual std::vector<Replacement> find_in_place(const RegionQuery&) const { return {}; }
  // Tells whether `find` looks for ops of this row, which then stay whole until it was asked.
  virtual bool keeps(const Composite&) const { return false; }
};

}  // namespace tinyshard
