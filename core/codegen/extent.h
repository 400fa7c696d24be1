// Loops that need not run over all values of their range. Masks in a kernel compare a range with
// numbers that are known before its loops: the size of a tensor at this call, the place of a row.
// Outside of what such masks admit, a store does nothing and a sum adds nothing, so the loop runs
// over the rest alone. The masks stay in the code: leaving an extent out, or rounding it to whole
// vectors, changes no value.
//
//   n = load p2 [0]                                     the number of keys so far
//   fold sum over k (4096) of where(k < n, load p1 [k], 0)      extent of k: values below n
//   store p0 [i], value, valid i < n                            extent of i: values below n
#pragma once
#include <vector>

#include "core/codegen/kernel_graph.h"

namespace tinyshard::codegen {

// scale * value of node + offset; the node is an integer and varies with no range.
struct RangeBound {
  int node = -1;
  int64_t scale = 1, offset = 0;
  bool operator==(const RangeBound&) const = default;
};

struct Extent {
  std::vector<RangeBound> low, high;  // low <= value < high, for each of them
  std::vector<int> conditions;        // comparisons that hold for all values in it
  bool limited() const { return !low.empty() || !high.empty(); }
  // The place of a row: the value where at most one lies in it, else null.
  const RangeBound* only_value() const;
  bool one_value() const { return only_value() != nullptr; }
};

// The values of a loop's range for which some of these stores, which all vary with it, do anything.
Extent extent_of_stores(const Graph& graph, const std::vector<int>& stores, int range);
// Returns the values of a range that count: for others each of these folds gets its identity.
Extent extent_of_folds(const Graph& graph, const std::vector<int>& folds, int range);

}  // namespace tinyshard::codegen
