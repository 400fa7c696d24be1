// Every formula is written so that exp has no positive argument and overflows nowhere: sigmoid(x)
// is e / (1 + e) below 0 and 1 / (1 + e) above it, with e = exp(-|x|). The gradient of GELU is
// made from it by differentiation, so the two cannot differ.
#include "core/ops/activations.h"

#include <numbers>

#include "core/dtype/half.h"
#include "core/passes/gradient.h"
#include "core/rewrite/pattern.h"

namespace tinyshard {
namespace {

UOp scaled(const UOp& a, double b) { return binary(Op::Mul, a, const_like(a, b)); }

// Two comparisons, as x <= 0 holds for no NaN and !(x > 0) for all. The result of a ReLU passes where
// its operand does.
UOp passes(const UOp& x) {
  return binary(Op::Or, binary(Op::CmpLt, const_like(x, 0), x), binary(Op::CmpNe, x, x));
}

UOp spelled_relu(std::span<const UOp> operands) {
  const UOp& x = operands[0];
  return where(passes(x), x, const_like(x, 0));
}
UOp relu_gradient(const UOp& y, const UOp& g, size_t) { return relu_slope(y.src(0), g); }
UOp spelled_relu_slope(std::span<const UOp> operands) {
  const UOp& g = operands[1];
  return where(passes(operands[0]), g, const_like(g, 0));
}

// (1 + tanh(u)) / 2 is sigmoid(2 u), u = sqrt(2 / pi) * (v + 0.044715 v^3). Far below zero that is
// 0, and the result -0; at its end it would be -inf * 0.
UOp spelled_gelu(std::span<const UOp> operands) {
  constexpr double k = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const UOp& x = operands[0];
  UOp v = cast(x, accumulator(x.dtype())), far = const_like(v, -1000);
  v = where(binary(Op::CmpLt, v, far), far, v);
  UOp square = binary(Op::Mul, v, v);
  UOp slope = binary(Op::Add, scaled(square, k * 0.044715), const_like(v, k));
  return cast(binary(Op::Mul, v, sigmoid(binary(Op::Mul, v, slope))), x.dtype());
}
UOp gelu_gradient(const UOp& y, const UOp& g, size_t) { return gelu_slope(y.src(0), g); }

UOp spelled_gelu_slope(std::span<const UOp> operands) {
  return gradient_of_spelling(spelled_gelu, operands.first(1), operands[1], 0);
}

}  // namespace

constexpr Composite kRelu{2, "relu",       "x where it is above zero or NaN, else 0",
                          1, spelled_relu, relu_gradient};
constexpr Composite kReluSlope{3, "relu_slope", "y where x is above zero or NaN, else 0", 2,
                               spelled_relu_slope};
constexpr Composite kGelu{4, "gelu",       "x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2",
                          1, spelled_gelu, gelu_gradient};
constexpr Composite kGeluSlope{5, "gelu_slope", "y times the derivative of gelu at x", 2,
                               spelled_gelu_slope};

UOp exp_minus_abs(const UOp& x) {
  UOp below = binary(Op::CmpLt, x, const_like(x, 0));
  return unary(Op::Exp2, scaled(where(below, x, unary(Op::Neg, x)), std::numbers::log2e));
}

UOp sigmoid(const UOp& x) {
  UOp e = exp_minus_abs(x), one = const_like(x, 1);
  UOp below = binary(Op::CmpLt, x, const_like(x, 0));
  return binary(Op::Div, where(below, e, one), binary(Op::Add, one, e));
}

}  // namespace tinyshard
