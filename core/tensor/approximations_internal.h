// Functions that the IR does not have, from those it has: rational approximations (S. Moshier's
// Cephes and Sun's fdlibm) with small relative error near zero too. For values of f32 and f64.
#pragma once
#include "core/tensor/value_internal.h"

namespace tinyshard::value {

// An odd function from its values above zero; its gradient at zero is that from above.
template <class F>
Value odd(const Value& x, const F& above_zero) {
  Value y = above_zero(where(x < 0, -x, x));
  return where(x < 0, -y, y);
}

Value log1p(const Value& x);          // log(1 + x)
Value expm1(const Value& x);          // exp(x) - 1
Value exp_minus_abs(const Value& x);  // exp(-|x|), whose gradient at zero is that of exp(-x)
Value asin_of(const Value& x);
Value atan_of(const Value& x);
Value sinh_of(const Value& x);
Value cosh_of(const Value& x);
Value tanh_of(const Value& x);
Value asinh_of(const Value& x);
Value acosh_of(const Value& x);
Value atanh_of(const Value& x);
Value erf_of(const Value& x);

}  // namespace tinyshard::value
