// A gradient that a program gives itself (core/tensor/function.h): Checkpoint(y, x...) with one of these
// as its payload is y, and what arrives at it goes to x... as this says, and not through y.
#pragma once
#include <vector>

#include "core/uop/graph.h"
#include "core/uop/uop.h"

namespace tinyshard {

class OwnGradient {
 public:
  virtual ~OwnGradient() = default;
  // The gradient of each x, of its type and shape, or null for none; `node` is the Checkpoint.
  virtual std::vector<UOp> gradients(const UOp& node, const UOp& gradient) const = 0;
};

// Null for what is no such node.
inline const OwnGradient* own_gradient(const UOp& x) {
  return x.op() == Op::Checkpoint ? static_cast<const OwnGradient*>(x->payload.get()) : nullptr;
}

// The roots without such nodes: plans differentiate nothing.
std::vector<UOp> without_own_gradients(const Graph& graph);

}  // namespace tinyshard
