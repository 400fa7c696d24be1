// Powers of floats: one op with two slopes. The derivatives of its parts are no derivatives where one
// of them is infinite: the slope of x^2 at infinity is infinity, that of exp2(2 log2(x)) is infinity
// over infinity.
#pragma once
#include "core/uop/composite.h"

namespace tinyshard {

extern const Composite kPower;

// base^exponent as std::pow has it, special values too. Both have one shape and one type, f32 or
// f64.
inline UOp power(const UOp& base, const UOp& exponent) {
  return composite(kPower, {base, exponent});
}

}  // namespace tinyshard
