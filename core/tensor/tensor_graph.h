// The graphs of tensors, as what they are: UOps that a program prints, looks at and rewrites.
//
//   std::cout << graph_of((a + b).sum());
//   Tensor y = graph_rewrite(x.exp().log(), rules);      // another tensor, of the rewritten graph
#pragma once
#include <iosfwd>

#include "core/rewrite/match.h"
#include "core/tensor/tensor.h"

namespace tinyshard {

// Returns the graph that a tensor is computed from, without the names of tensors and without waits; a Buffer is a value
// that is there. Back to a tensor: Tensor(uop).
UOp graph_of(const Tensor& x, Caller caller = Caller::current());

// The tensor of the graph as the rules make it. Gradients go through the rewritten graph.
Tensor graph_rewrite(const Tensor& x, const PatternMatcher& rules,
                     Caller caller = Caller::current());

// A line for each node, sources first: "%3 = add f32[2, 3] %1 %2".
std::ostream& operator<<(std::ostream& out, const UOp& x);

}  // namespace tinyshard
