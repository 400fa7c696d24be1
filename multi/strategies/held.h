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

// The same of places that count through dims [first, last) of the whole value, row by row, and of a
// part in which these are one line as well. Of [2, 4] divided by columns over two devices, the first
// one holds places 0 1 4 5, which are 0 1 2 3 there.
struct Joined {
  int first, last;
};
UOp index_into_part(const UOp& index, const LocalValue& value, DimSpan global, Joined dims);
// The way back: places in the line of a part as those of the whole value.
UOp index_into_whole(const UOp& index, const LocalValue& value, DimSpan global, Joined dims);
UOp held_elsewhere(const UOp& index, const LocalValue& value, DimSpan global, Joined dims);

}  // namespace tinyshard
