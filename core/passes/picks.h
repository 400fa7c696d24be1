// Gathers that come before the arithmetic they used to follow.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// A Gather of few elements of a computed value, as the same computed from elements gathered: the
// value itself, a log-softmax over a vocabulary, then needs no memory. What depends on nothing but
// the place (a mask of the vocabulary) is computed from the index. An index out of range gives
// zero, as it did. Null where nothing is gained; applied again to what it returns, it goes on.
UOp pick_first(const UOp& gather);

}  // namespace tinyshard
