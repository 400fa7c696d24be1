// How much of each value is ever looked at. A mask that compares places with a number that is known
// when the step runs, as those of symbolic sizes do, makes what lies behind that number irrelevant
// to everybody in front of the mask: it need not be computed or stored.
//
//   scores = dot q k                       [8, 1, 4096]: demanded below n along dim 2
//   e = exp2(scores)                       the same
//   sum over 2 of where(iota < n, e, 0)
//
// Whoever leaves out what is not demanded may leave anything in its place.
#pragma once
#include <span>
#include <vector>

#include "core/uop/node_map.h"
#include "core/uop/uop.h"

namespace tinyshard {

class Demand {
 public:
  // Looks at the graph below the roots as a whole; `order` is its topological order.
  Demand(std::span<const UOp> order, std::span<const UOp> roots);

  // By dim of x: a scalar integer, of which nothing but buffers and numbers is computed, such that
  // only places below it count; null where all do. Empty when all places of all dims count.
  std::span<const UOp> of(const UOp& x) const;

 private:
  void add(const UOp& x, std::vector<UOp> dims);

  NodeMap<std::vector<UOp>> demanded_;
};

// The dims of a condition for which it can only be `wanted` at places below a number, likewise.
std::vector<UOp> places_below(const UOp& condition, bool wanted);

// where(c, x, constant) with such a condition, or the other way round: x behind a mask.
bool is_mask(const UOp& x);

}  // namespace tinyshard
