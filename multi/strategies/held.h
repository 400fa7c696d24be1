// Which places of a divided dim a device holds, as values of the graph: for lookups that each
// device answers as far as it can.
#pragma once
#include "multi/redistribute.h"

namespace tinyshard {

// i64[1] both: the places [low, high) of `dim` in the whole value. Padding is not among them, so
// that a part that is all padding holds none.
struct Held {
  UOp low, high;
};
Held held_places(const LocalValue& value, DimSpan global, int dim);

// An index into `dim` of the whole value as one into the part: -1 where another device holds it.
UOp index_into_part(const UOp& index, const LocalValue& value, DimSpan global, int dim);
// Bool: whether another device holds the place; false for an index that is beyond the whole value.
UOp held_elsewhere(const UOp& index, const LocalValue& value, DimSpan global, int dim);

}  // namespace tinyshard
