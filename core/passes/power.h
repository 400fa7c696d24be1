// Powers of floats, in one place: what the tensor API builds, and what the gradient recognises as
// such, because the derivatives of its parts are no derivatives where one of them is infinite: the
// slope of x^2 at infinity is infinity, that of exp2(2 log2(x)) is infinity over infinity.
#pragma once
#include <optional>

#include "core/uop/uop.h"

namespace tinyshard {

// base^exponent as std::pow has it, special values too. Both have one shape and one type, f32 or
// f64.
UOp power(const UOp& base, const UOp& exponent);

struct PowerOperands {
  const UOp *base, *exponent;  // inside of the power's own nodes
};
// The operands of what power() built; nothing for any other value.
std::optional<PowerOperands> power_operands(const UOp& x);

// The gradients of `y`, a power of these, when `g` arrives: g n x^(n - 1) and g x^n log(x). A
// constant power (n = 0) has no slope, nor has zero, whatever its positive power.
UOp power_base_gradient(const PowerOperands& of, const UOp& g);
UOp power_exponent_gradient(const PowerOperands& of, const UOp& y, const UOp& g);

}  // namespace tinyshard
