// Through which ops a pending sum stays pending: those that are linear in it.
#pragma once
#include <span>
#include <vector>

#include "multi/redistribute.h"

namespace tinyshard {

// Whether each element is a finite number, whatever the run: constants, and bools as numbers.
bool is_finite(const UOp& x);

// Of an elementwise op, along a mesh axis, with operands that lie so.
bool stays_partial(const UOp& x, std::span<const LocalValue> operands, size_t axis);

// The same of any op with one result per element, where that one source is a pending sum and all
// others are on all devices.
bool stays_partial_through(const UOp& x, const UOp& source);

}  // namespace tinyshard
