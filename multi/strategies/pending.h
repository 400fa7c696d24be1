// Through which ops a pending sum stays pending: those that are linear in it.
#pragma once
#include <span>
#include <vector>

#include "multi/redistribute.h"

namespace tinyshard {

// Returns whether the terms of a sum may be multiplied by x before they are added up: integers,
// bools as numbers, and constants that make no term larger.
bool scales_terms(const UOp& x);

// Returns whether an elementwise op leaves operands that lie so pending along a mesh axis.
bool stays_partial(const UOp& x, std::span<const LocalValue> operands, size_t axis);

// Tells whether any op with one result per element keeps a sum pending, if that one source is a
// pending sum and all others are on all devices.
bool stays_partial_through(const UOp& x, const UOp& source);

// Returns whether x is a product of floats: `source`, and a factor by which the terms of sums may
// not be multiplied.
bool weighs(const UOp& x, const UOp& source);

// Returns whether these are the local terms of a lookup that each device makes in its part of the
// table, moved and cast: -0.0 in the places that others hold.
bool is_found(const UOp& terms);

// The local terms of such a product of such a lookup. What others hold stays -0.0: infinity times
// that is no number.
UOp weighed(const UOp& terms, const UOp& weight);

}  // namespace tinyshard
