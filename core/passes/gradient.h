// Reverse-mode differentiation over the graph: one rule per op, the result is more graph.
#pragma once
#include <span>
#include <vector>

#include "core/uop/graph.h"
#include "core/uop/uop.h"

namespace tinyshard {

// d sum(root * seed) / d target for each target; a null UOp where root does not depend on the
// target. Seeds have the roots' shapes and types. A target is its node, and every node of its name:
// by default that of the node, if it has one (an Identity); `names` gives others, 0 for none, since
// a tensor that was computed in the meantime is another node under the same name. UserError when a
// path to a target goes through an op without a derivative that is not a boundary (Detach and
// comparisons are boundaries: they stop).
std::vector<UOp> gradient(const Graph& roots, std::span<const UOp> seeds,
                          std::span<const UOp> targets, std::span<const int64_t> names = {});

// Returns d spell(operands) g / d operands[source]. It is taken on names that stand for operands and g: operands
// may be one node, and nothing below them is looked at. A constant g stays, so that it folds.
UOp gradient_of_spelling(UOp (*spell)(std::span<const UOp>), std::span<const UOp> operands,
                         const UOp& g, size_t source);

// x, of which nothing is used before `event` is there (an After); and in the backward pass nothing of
// the gradient of `event`, a float, before all of that of x is there. So work that follows in steps
// can be kept from running all at once, both ways.
UOp in_order_both_ways(const UOp& x, const UOp& event);

}  // namespace tinyshard
