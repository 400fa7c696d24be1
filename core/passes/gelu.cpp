// Every formula is written so that exp has no positive argument and overflows nowhere: sigmoid(x)
// is e / (1 + e) below 0 and 1 / (1 + e) above it, with e = exp(-|x|). The gradient of GELU is
// made from it by differentiation, so the two cannot differ.
#include "core/passes/gelu.h"

#include <numbers>

#include "core/passes/gradient.h"

namespace tinyshard {
namespace {

UOp scaled(const UOp& a, double b) { return binary(Op::Mul, a, const_like(a, b)); }

}  // namespace

// Two comparisons, as x <= 0 holds for no NaN and !(x > 0) for all.
UOp relu_passes(const UOp& x) {
  return binary(Op::Or, binary(Op::CmpLt, const_like(x, 0), x), binary(Op::CmpNe, x, x));
}

UOp relu(const UOp& x) { return where(relu_passes(x), x, const_like(x, 0)); }

UOp exp_minus_abs(const UOp& x) {
  UOp below = binary(Op::CmpLt, x, const_like(x, 0));
  return unary(Op::Exp2, scaled(where(below, x, unary(Op::Neg, x)), std::numbers::log2e));
}

UOp sigmoid(const UOp& x) {
  UOp e = exp_minus_abs(x), one = const_like(x, 1);
  UOp below = binary(Op::CmpLt, x, const_like(x, 0));
  return binary(Op::Div, where(below, e, one), binary(Op::Add, one, e));
}

// (1 + tanh(u)) / 2 is sigmoid(2 u), u = sqrt(2 / pi) * (v + 0.044715 v^3). Far below zero that is
// 0, and the result -0; at its end it would be -inf * 0.
UOp gelu(const UOp& x) {
  constexpr double k = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  UOp v = cast(x, accumulator(x.dtype())), far = const_like(v, -1000);
  v = where(binary(Op::CmpLt, v, far), far, v);
  UOp square = binary(Op::Mul, v, v);
  UOp slope = binary(Op::Add, scaled(square, k * 0.044715), const_like(v, k));
  return cast(binary(Op::Mul, v, sigmoid(binary(Op::Mul, v, slope))), x.dtype());
}

UOp gelu_gradient(const UOp& x, const UOp& seed) {
  UOp y = gelu(x);
  return gradient(std::span(&y, 1), std::span(&seed, 1), std::span(&x, 1))[0];
}

}  // namespace tinyshard
