// x^n is 2^(n log2 |x|) with the sign that x gives it. What is left are the places where that would
// be 0 * inf: n = 0, where every power is 1, and |x| = 1, whose powers are 1 up to the sign.
//
//   (-8)^3:    log2 8 = 3, 2^9 = 512, x < 0 and n odd: -512
//   (-8)^0.5:  2^1.5, but x < 0 and n no integer: NaN
//   0^-1:      log2 0 = -inf, 2^inf = inf
//   1^NaN:     1
#include "core/ops/power.h"

#include <limits>
#include <numbers>

namespace tinyshard {
namespace {

UOp times(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp both(const UOp& a, const UOp& b) { return binary(Op::And, a, b); }
UOp either(const UOp& a, const UOp& b) { return binary(Op::Or, a, b); }
UOp equal(const UOp& a, const UOp& b) { return binary(Op::CmpEq, a, b); }
UOp less(const UOp& a, const UOp& b) { return binary(Op::CmpLt, a, b); }

UOp spelled_power(std::span<const UOp> operands) {
  const UOp &x = operands[0], &n = operands[1];
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  UOp zero = const_like(x, 0), one = const_like(x, 1);
  UOp magnitude = binary(Op::Max, x, unary(Op::Neg, x));
  UOp log = where(equal(magnitude, one), zero, times(unary(Op::Log2, magnitude), n));
  UOp positive = unary(Op::Exp2, log);

  UOp is_whole = equal(unary(Op::Trunc, n), n), half = times(n, const_like(n, 0.5));
  UOp is_odd = both(is_whole, binary(Op::CmpNe, unary(Op::Trunc, half), half));
  UOp bits = UOp::make(Op::Bitcast, x.dtype() == DType::F64 ? DType::I64 : DType::I32, {x});
  UOp is_negative = less(bits, const_int(bits.dtype(), 0, bits.shape()));  // -0, too
  UOp with_sign = where(both(is_negative, is_odd), unary(Op::Neg, positive), positive);

  UOp has_no_roots = both(less(x, zero), less(const_like(x, -inf), x));
  UOp rooted = where(both(has_no_roots, unary(Op::Not, is_whole)), const_like(x, nan), with_sign);
  return where(either(equal(n, const_like(n, 0)), equal(x, one)), one, rooted);
}

// g n x^(n - 1).
UOp base_gradient(const UOp& x, const UOp& n, const UOp& g) {
  UOp less_one =
      is_const(n) ? const_like(n, const_as_double(n) - 1) : binary(Op::Sub, n, const_like(n, 1));
  UOp gradient = times(g, times(n, power(x, less_one)));
  // For n = 0 it is zero, also where that would be 0 * inf. Yet it is differentiated again, and its
  // slope by n is x^-1 there: the formula stays wherever it gives the zero itself.
  const UOp is_zero = equal(n, const_like(n, 0)), zero = const_like(g, 0);
  if (is_const(n)) return where(is_zero, zero, gradient);
  const UOp gives_way = both(is_zero, binary(Op::CmpNe, gradient, zero));
  // -0 + 0 is 0, and -0 + -0 is -0: the zero has no sign, all else is as it was.
  return binary(Op::Add, where(gives_way, zero, gradient),
                where(is_zero, zero, const_like(g, -0.0)));
}

// g x^n log(x). A constant power (n = 0) has no slope, nor has zero, whatever its positive power.
UOp exponent_gradient(const UOp& x, const UOp& n, const UOp& y, const UOp& g) {
  const UOp zero = const_like(x, 0);
  UOp log = times(unary(Op::Log2, x), const_like(x, std::numbers::ln2));
  UOp is_flat = both(equal(x, zero), either(less(zero, n), equal(n, zero)));
  return where(is_flat, const_like(g, 0), times(g, times(y, log)));
}

UOp power_gradient(const UOp& y, const UOp& g, size_t source) {
  const UOp &x = y.src(0), &n = y.src(1);
  return source == 0 ? base_gradient(x, n, g) : exponent_gradient(x, n, y, g);
}

}  // namespace

constexpr Composite kPower{1, "power", "x^y as std::pow has it", 2, spelled_power, power_gradient};

}  // namespace tinyshard
