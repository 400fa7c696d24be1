// Reshapes whose split dim does not start, or does not divide, as a dim of the result does.
#pragma once
#include "multi/redistribute.h"

namespace tinyshard {

// `value` with the dims that a reshape to `to` merges or divides together with `dim`, which one
// mesh axis splits, replaced by those that it makes of them; so is `global`, its shape. Elements go
// where they belong, point to point. Nothing where no dim of the result can be split: `dim` has to
// be put together.
std::optional<LocalValue> realigned(const LocalValue& value, Dims& global, DimSpan to, int dim);

}  // namespace tinyshard
