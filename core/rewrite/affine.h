// Indices as functions of loop ranges: strides for library calls and vector loads, and loops split
// or merged so that indices need no division. Expressions are expected to be simplified; what is
// not simplified may be missed.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

// constant + sum of coefficient * range.
struct Affine {
  struct Term {
    UOp range;
    int64_t coefficient;
  };
  int64_t constant = 0;
  std::vector<Term> terms;  // each range once, no zero coefficient, larger coefficients first

  int64_t coefficient(const UOp& range) const;  // 0 when the range does not occur
};

// Nothing when some part of the index is neither a constant nor a multiple of a Range.
std::optional<Affine> as_affine(const UOp& index);

// Returns by how much `index` grows when `range` grows by one, whatever the other ranges are; 0
// when the range does not occur; nothing when it occurs in a part that is not linear.
std::optional<int64_t> stride(const UOp& index, const UOp& range);

// A kernel's expressions and its ranges, outermost first.
struct LoopNest {
  std::vector<UOp> roots, ranges;
};

// Splits ranges to remove divisions. A range r that occurs as r / c or r % c, where c divides its
// size, becomes r1 * c + r2, two ranges in its place; r1 is split again for further divisors. A
// range that is only compared with multiples of a long c, as in a concatenation, is split as well:
// each comparison then holds for whole runs of r2. Ranges whose divisors do not divide each other
// stay. Folds over r run over r1 and r2. Changed expressions are simplified again.
LoopNest split_ranges(std::span<const UOp> roots, std::span<const UOp> ranges);

// Neighbours r1 (outer) and r2 (inner, of size s) of the same kind that occur in every index only
// as r1 * s + r2, or a multiple of it, become one range; ranges of size 1 are dropped. Changed
// expressions are simplified again.
LoopNest merge_ranges(std::span<const UOp> roots, std::span<const UOp> ranges);

}  // namespace tinyshard
