// The gradients of decompositions, of which each factor is a node of its own: they add up.
//
//   x = U diag(s) V     of s: U diag(g) V. Of U and V: singular values differ from each other, and from
//                       0 where x is not square; whole U and V (full) are those of a square x
//   x = Q R             of R: x has no fewer rows than columns, of full rank. Of Q: x is square, too
//
// A factor that has none is a UserError. Equal singular values are no error: they give infinities or NaN.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

// Returns the gradient of the source of y, a Decompose, for the gradient g of y.
UOp decompose_gradient(const UOp& y, const UOp& g);

}  // namespace tinyshard
