// ReLU and GELU by tanh, in one place: what the tensor API builds, what regions of products are spelled
// as, and how the two are recognised as the same.
#pragma once
#include "core/uop/uop.h"

namespace tinyshard {

UOp relu(const UOp& x);         // for every float; NaN stays
UOp relu_passes(const UOp& x);  // where it is x: above zero, and NaN; the same of its result

UOp exp_minus_abs(const UOp& x);  // exp(-|x|), whose gradient at zero is that of exp(-x)
UOp sigmoid(const UOp& x);        // both for f32 and f64
UOp gelu(const UOp& x);           // for every float; narrow ones compute in f32

// seed * gelu'(x), as core/passes/gradient.h gives it.
UOp gelu_gradient(const UOp& x, const UOp& seed);

}  // namespace tinyshard
