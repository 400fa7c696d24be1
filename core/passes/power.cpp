// x^n is 2^(n log2 |x|) with the sign that x gives it. What is left are the places where that would
// be 0 * inf: n = 0, where every power is 1, and |x| = 1, whose powers are 1 up to the sign.
//
//   (-8)^3:    log2 8 = 3, 2^9 = 512, x < 0 and n odd: -512
//   (-8)^0.5:  2^1.5, but x < 0 and n no integer: NaN
//   0^-1:      log2 0 = -inf, 2^inf = inf
//   1^NaN:     1
#include "core/passes/power.h"

#include <limits>
#include <numbers>

namespace tinyshard {
namespace {

UOp times(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp both(const UOp& a, const UOp& b) { return binary(Op::And, a, b); }
UOp either(const UOp& a, const UOp& b) { return binary(Op::Or, a, b); }
UOp equal(const UOp& a, const UOp& b) { return binary(Op::CmpEq, a, b); }
UOp less(const UOp& a, const UOp& b) { return binary(Op::CmpLt, a, b); }

bool is_where_one(const UOp& x) {
  return x.op() == Op::Where && is_const(x.src(1), 1) && x.src(0).op() == Op::Or &&
         x.src(0).src(0).op() == Op::CmpEq && x.src(0).src(1).op() == Op::CmpEq;
}

}  // namespace

UOp power(const UOp& x, const UOp& n) {
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

std::optional<PowerOperands> power_operands(const UOp& x) {
  if (!is_where_one(x)) return {};
  const UOp& condition = x.src(0);
  PowerOperands out{&condition.src(1).src(0), &condition.src(0).src(0)};
  bool is_wide = x.dtype() == DType::F32 || x.dtype() == DType::F64;
  if (!is_wide || out.base->dtype() != x.dtype() || out.exponent->dtype() != x.dtype()) return {};
  if (!(power(*out.base, *out.exponent) == x)) return {};
  return out;
}

UOp power_base_gradient(const PowerOperands& of, const UOp& g) {
  const UOp &x = *of.base, &n = *of.exponent;
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

UOp power_exponent_gradient(const PowerOperands& of, const UOp& y, const UOp& g) {
  const UOp &x = *of.base, &n = *of.exponent, zero = const_like(x, 0);
  UOp log = times(unary(Op::Log2, x), const_like(x, std::numbers::ln2));
  UOp is_flat = both(equal(x, zero), either(less(zero, n), equal(n, zero)));
  return where(is_flat, const_like(g, 0), times(g, times(y, log)));
}

}  // namespace tinyshard
