// What the libraries of a device compute in one call beyond an op of the graph: products that take in
// what follows them (core/uop/product_region.h). A provider belongs to the folder of a maker, knows the
// regions of its library and finds them; the passes ask those of all devices that a plan computes on
// (core/passes/passes.cpp, `epilogues` and `updates`).
//
//   class Negations final : public LibraryProvider {      // for -(a @ b)
//     std::vector<UOp> fuse(const RegionQuery& q) const override {
//       return rewrite_once(q.graph, [&](const UOp& x) {
//         if (x.op() != Op::Neg || x.src(0).op() != Op::Dot || ..) return UOp();
//         UOp product = region_product(kNegated, ..);
//         return q.supports(row_major_call(product)) ? product : UOp();
//       });
//     }
//   };
//
// Threads: one provider answers for several graphs at once.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

struct RegionQuery {
  const Graph& graph;
  // Whether each device of the plan takes the call, by Device::supports.
  const std::function<bool(const LibraryCall&)>& supports;
  // The form in which an expression that somebody writes is found in the graph: what passes before
  // leave of it.
  std::function<std::vector<UOp>(const Graph&)> tidied;
};

class LibraryProvider {
 public:
  virtual ~LibraryProvider() = default;

  // The roots of a graph with the same values, in which products are regions where `supports` takes
  // these, asked with row-major operands, and where no other node reads what is then in no memory. A
  // region that is made may still be spelled out again.
  virtual std::vector<UOp> fuse(const RegionQuery& query) const = 0;
  // The same for regions that are computed in place, of the products that are not loops by then.
  virtual std::vector<UOp> fuse_in_place(const RegionQuery& query) const {
    return query.graph.roots();
  }
};

}  // namespace tinyshard
