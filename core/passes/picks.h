// Pushes gathers below elementwise ops, and replaces sums with one term (one-hot sums) by selects.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// A Gather of few elements of a computed value, as the same computed from elements gathered: the
// value itself, a log-softmax over a vocabulary, then needs no memory. What depends on nothing but
// the place (a mask of the vocabulary) is computed from the index. An index out of range gives
// zero, as it did. Null where nothing is gained; applied again to what it returns, it goes on.
UOp pick_first(const UOp& gather);

// A sum along one axis of what is zero but at one place of it, as the gradient of a pick is: the
// value there, or zero where the place is out of range. Null for any other reduction.
UOp sum_of_pick(const UOp& reduce);

}  // namespace tinyshard
