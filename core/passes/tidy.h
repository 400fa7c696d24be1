// Small clean-ups of tensor graphs.
#pragma once
#include <vector>

#include "core/runtime/profile.h"
#include "core/uop/graph.h"

namespace tinyshard {

// Removes gradient boundaries and identities (x * 1, x + 0, double negation, casts to the same
// type or there and back), computes constants. Values stay the same bit for bit, except -0.0 + 0
// and sums of constants, which are rounded once.
std::vector<UOp> tidy(const Graph& graph);

// [n] -> [p, n / p] -> [p] -> []. So does a sum of very many floats, whatever it results in, whose
// error would grow with their number. The order of summation depends on shapes and limits only.
std::vector<UOp> split_reductions(const Graph& graph, const SplitLimits& limits);

// A product of which only the transpose is used is computed transposed: (a b)^T = b^T a^T, so that
// the gradient of a weight comes in the weight's own layout.
std::vector<UOp> transpose_products(const Graph& graph);

}  // namespace tinyshard
