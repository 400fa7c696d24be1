// ReLU and GELU by tanh, with their slopes, and the exponentials that they and others are made of.
#pragma once
#include "core/uop/composite.h"

namespace tinyshard {

extern const Composite kRelu, kReluSlope, kGelu, kGeluSlope;

// For every float. NaN stays, and narrow floats compute GELU in f32.
inline UOp relu(const UOp& x) { return composite(kRelu, {x}); }
inline UOp gelu(const UOp& x) { return composite(kGelu, {x}); }
// The gradients of x when g arrives at the result. The result of a ReLU may stand for its x.
inline UOp relu_slope(const UOp& x, const UOp& g) { return composite(kReluSlope, {x, g}); }
inline UOp gelu_slope(const UOp& x, const UOp& g) { return composite(kGeluSlope, {x, g}); }

UOp exp_minus_abs(const UOp& x);  // exp(-|x|), whose gradient at zero is that of exp(-x)
UOp sigmoid(const UOp& x);        // both for f32 and f64

}  // namespace tinyshard
