// Values of which a reshape joined dims, one of them divided. Tokens [2, 8 over 4 devices, w]
// become rows [16, w]: no device holds rows that lie side by side, so as [16, w] the value has to
// move. As [2, 8, w] it lies well, and a product does not mind that its rows are counted by two
// dims. So such a value is kept in both forms. The one that moved is what every op may use; where
// nobody does, it is part of no graph and nothing is sent.
#pragma once
#include "multi/strategies/local_values.h"

namespace tinyshard {

// The other form of a value: of what shape it is, and how many dims of it make each dim joined.
struct Apart {
  LocalValue value;
  Dims shape;
  std::vector<size_t> counts;
};

// v of shape `from` as `to`; divided dims that do not come through move as a reshape moves them, or
// are gathered.
LocalValue reshaped(LocalValue v, DimSpan from, DimSpan to);
// The dims of `shape` that make dim `joined`: [first, last).
std::pair<int, int> dims_of(const Apart& apart, int joined);

// A part, of that shape, with the dims joined of what a device holds.
UOp in_lines(const UOp& part, const Apart& apart);

// The value of shape `joined` that v is with its dims joined, in both forms if it has to be.
LocalValue joined_again(LocalValue v, Dims shape, std::vector<size_t> counts, DimSpan joined);

LocalValue settled_in_both_forms(LocalValue v, DimSpan global);

// Returns what the rules made of x, with the other form beside it where x joins dims, or passes on
// elements of a value that has one; a reshape that takes the dims apart again continues from it.
LocalValue with_apart(const UOp& x, LocalValue made, const LocalValues& values);

}  // namespace tinyshard
