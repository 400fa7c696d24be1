// Comparisons of Index values and boolean combinations of them. Internal to core/rewrite.
#pragma once
#include <span>
#include <vector>

#include "core/rewrite/index_algebra.h"

namespace tinyshard {

// x < 0 as true, false, `sum < constant` or `constant < sum` with a positive leading coefficient
// and no factor common to all coefficients.
UOp less_than_zero(IndexAlgebra& algebra, const Linear& x);
// x == 0, or x != 0.
UOp equal_to_zero(IndexAlgebra& algebra, const Linear& x, bool negate);

// The opposite of a condition.
UOp negated(IndexAlgebra& algebra, const UOp& condition);

// a And b: no condition twice, none that follows from the others, false when they exclude each
// other.
UOp conjunction(IndexAlgebra& algebra, const UOp& a, const UOp& b);
UOp disjunction(IndexAlgebra& algebra, const UOp& a, const UOp& b);

// The conditions that a chain of And joins.
std::vector<UOp> conjuncts(const UOp& condition);

// `low <= sum <= high` as a fact about the terms of the sum.
struct Bound {
  UOp sum;
  Interval interval;
};
// Returns what `condition` says if it is a canonical comparison of an Index sum with a constant.
std::optional<Bound> as_bound(const UOp& condition);

}  // namespace tinyshard
