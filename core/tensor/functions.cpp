// Functions of one value. Each stays finite where its result is, has a gradient without 0 * inf,
// and computes f16 and bf16 in f32 inside.
#include <bit>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/ops/activations.h"
#include "core/ops/power.h"
#include "core/tensor/approximations_internal.h"

namespace tinyshard {
namespace value {
namespace {

constexpr double kLog2E = std::numbers::log2e, kLn2 = std::numbers::ln2;

Value apply(Op op, const Value& x) {
  return in_floats(x, [op](const Value& v) -> Value { return tinyshard::unary(op, v.node()); });
}

Value is_odd(const Value& whole) {
  Value half = whole * 0.5;
  return trunc(half) != half;
}

// base^n by squaring.
Value power_of_integer(const Value& base, uint64_t n) {
  std::optional<Value> out;
  Value squared = base;
  for (; n; n >>= 1) {
    if (n & 1) out = out ? *out * squared : squared;
    if (n > 1) squared = squared * squared;
  }
  return out ? *out : constant_of(base, 1);
}

// base^exponent for integers, by all bits of the exponent. Of negative powers the whole part is
// left: 1, -1 and zero.
Value integer_power(const Value& base, const Value& exponent) {
  DType dtype = base.dtype();
  int bits = 8 * static_cast<int>(itemsize(dtype)) - (is_signed_int(dtype) ? 1 : 0);
  Value out = constant(dtype, 1, base.shape()), squared = base;
  for (int bit = 0; bit < bits; ++bit) {
    out = where((exponent & (uint64_t{1} << bit)) != 0, out * squared, out);
    if (bit < bits - 1) squared = squared * squared;
  }
  if (is_unsigned_int(dtype)) return out;
  Value inverse = where(base == 1, 1, where(base == -1, where((exponent & 1) != 0, -1, 1), 0));
  return where(exponent < 0, cast(inverse, dtype), out);
}

}  // namespace

Value square(const Value& x) { return x * x; }
Value sqrt(const Value& x) { return apply(Op::Sqrt, x); }
Value reciprocal(const Value& x) { return apply(Op::Recip, x); }
Value rsqrt(const Value& x) {
  return in_floats(x, [](const Value& v) { return reciprocal(sqrt(v)); });
}
Value exp2(const Value& x) { return apply(Op::Exp2, x); }
Value log2(const Value& x) { return apply(Op::Log2, x); }
Value sin(const Value& x) { return apply(Op::Sin, x); }
Value exp(const Value& x) {
  return in_floats(x, [](const Value& v) { return exp2(v * kLog2E); });
}
Value log(const Value& x) {
  return in_floats(x, [](const Value& v) { return log2(v) * kLn2; });
}
// Halving is exact, unlike adding pi / 2.
Value cos(const Value& x) {
  return in_floats(x, [](const Value& v) { return 1 - 2 * square(sin(v * 0.5)); });
}

Value trunc(const Value& x) {
  if (!is_float(x.dtype())) return x;
  return tinyshard::unary(Op::Trunc, x.node());
}
Value floor(const Value& x) {
  if (!is_float(x.dtype())) return x;
  Value whole = trunc(x);
  return where(x < whole, whole - 1, whole);
}

Value isnan(const Value& x) {
  if (!is_float(x.dtype())) return constant(DType::Bool, false, x.shape());
  return x != x;
}
Value isinf(const Value& x) {
  if (!is_float(x.dtype())) return constant(DType::Bool, false, x.shape());
  return abs(x) == std::numeric_limits<double>::infinity();
}

Value sign(const Value& x) {
  if (x.dtype() == DType::Bool) return x;
  if (is_unsigned_int(x.dtype())) return cast(x != 0, x.dtype());
  return where(x < 0, -1, where(x > 0, 1, detach(x)));  // x where it is a zero or NaN
}
Value abs(const Value& x) {
  if (x.dtype() == DType::Bool || is_unsigned_int(x.dtype())) return x;
  Value larger = maximum(x, -x);
  return is_float(x.dtype()) ? where(x == 0, 0, larger) : larger;  // of two zeros neither is larger
}

Value relu(const Value& x) {
  if (!is_float(x.dtype())) return where(x > 0, x, 0);
  return tinyshard::relu(x.node());
}

Value sigmoid(const Value& x) {
  return in_floats(x, [](const Value& v) -> Value { return tinyshard::sigmoid(v.node()); });
}

Value tanh(const Value& x) { return in_floats(x, tanh_of); }

Value softplus(const Value& x) {
  return in_floats(x,
                   [](const Value& v) { return where(v < 0, 0.0, v) + log1p(exp_minus_abs(v)); });
}

}  // namespace value

using value::in_floats;
using value::Value;

namespace {

// exp(x) - 1 below zero; above, where another branch is taken, zero.
Value exp_minus_one_below_zero(const Value& x) { return value::expm1(value::where(x > 0, 0.0, x)); }

// x / (1 + |x|), which far from zero is 1 - 1 / (1 + |x|): the slope of the quotient would be the
// difference of two numbers that are nearly equal.
Value softsign_of(const Value& x) {
  return value::odd(x, [](const Value& v) {
    const Value far = v > 1.0;
    return value::where(far, 1 - 1 / (1 + v), value::where(far, 0.0, v) / (1 + v));
  });
}

// For functions x p(x) whose p falls to zero faster than x to -infinity: they are -0 as far below
// zero as this, where p is 0, and would be -inf * 0 at the end.
Value not_too_far_below_zero(const Value& x) { return value::where(x < -1000.0, -1000.0, x); }

// Limits that all integers of x's type keep anyway are no numbers of that type, and change nothing.
Value clamped(const Value& x, std::optional<Scalar> low, std::optional<Scalar> high) {
  bool integers = is_int(x.dtype());
  auto beyond = [&](const std::optional<Scalar>& limit, bool below) {
    return integers && limit && !limit->is_float() && !value::fits(*limit, x.dtype()) &&
           (limit->real < 0) == below;
  };
  if (beyond(low, true)) low.reset();
  if (beyond(high, false)) high.reset();
  Value out = x;
  if (low) out = value::where(out < Value(*low), Value(*low), out);
  if (high) out = value::where(out > Value(*high), Value(*high), out);
  return out;
}

Value round_to_even(const Value& x) {
  if (!is_float(x.dtype())) return x;
  Value whole = value::trunc(x), rest = value::abs(x - whole);
  Value up = (rest > 0.5) | ((rest == 0.5) & value::is_odd(whole));
  return value::where(up, whole + value::where(x < 0, -1, 1), whole);
}

}  // namespace

#define TINYSHARD_UNARY(method, expression) \
  Tensor Tensor::method() const {           \
    Call call(#method);                     \
    Value x(*this);                         \
    return expression;                      \
  }
// The same for functions of floats: v is x in at least f32.
#define TINYSHARD_FLOAT_UNARY(method, expression)                                \
  Tensor Tensor::method() const {                                                \
    Call call(#method);                                                          \
    return in_floats(*this, [](const Value& v) -> Value { return expression; }); \
  }
// And for those of the kind of not_too_far_below_zero.
#define TINYSHARD_GATED_UNARY(method, expression)         \
  Tensor Tensor::method() const {                         \
    Call call(#method);                                   \
    return in_floats(*this, [](const Value& x) -> Value { \
      Value v = not_too_far_below_zero(x);                \
      return expression;                                  \
    });                                                   \
  }

TINYSHARD_UNARY(neg, -x)
TINYSHARD_UNARY(abs, value::abs(x))
TINYSHARD_UNARY(sign, value::sign(x))
TINYSHARD_UNARY(square, value::square(x))
TINYSHARD_UNARY(trunc, value::trunc(x))
TINYSHARD_UNARY(floor, value::floor(x))
TINYSHARD_UNARY(ceil, is_float(x.dtype()) ? -value::floor(-x) : x)
TINYSHARD_UNARY(round, round_to_even(x))
TINYSHARD_UNARY(isnan, value::isnan(x))
TINYSHARD_UNARY(isfinite, !(value::isnan(x) | value::isinf(x)))
TINYSHARD_UNARY(logical_not, !x)
TINYSHARD_UNARY(relu, value::relu(x))
TINYSHARD_UNARY(relu6, clamped(x, 0, 6))
TINYSHARD_UNARY(sigmoid, value::sigmoid(x))
TINYSHARD_UNARY(exp, value::exp(x))
TINYSHARD_UNARY(exp2, value::exp2(x))
TINYSHARD_UNARY(log, value::log(x))
TINYSHARD_UNARY(log2, value::log2(x))
TINYSHARD_UNARY(sin, value::sin(x))
TINYSHARD_UNARY(cos, value::cos(x))
TINYSHARD_UNARY(tanh, value::tanh(x))
TINYSHARD_UNARY(sqrt, value::sqrt(x))
TINYSHARD_UNARY(rsqrt, value::rsqrt(x))
TINYSHARD_UNARY(reciprocal, value::reciprocal(x))
TINYSHARD_FLOAT_UNARY(log10, value::log2(v) * (std::numbers::ln2 / std::numbers::ln10))
TINYSHARD_FLOAT_UNARY(tan, value::sin(v) / value::cos(v))
TINYSHARD_FLOAT_UNARY(asin, value::asin_of(v))
TINYSHARD_FLOAT_UNARY(acos, std::numbers::pi / 2 - value::asin_of(v))
TINYSHARD_FLOAT_UNARY(atan, value::atan_of(v))
TINYSHARD_FLOAT_UNARY(sinh, value::sinh_of(v))
TINYSHARD_FLOAT_UNARY(cosh, value::cosh_of(v))
TINYSHARD_FLOAT_UNARY(asinh, value::asinh_of(v))
TINYSHARD_FLOAT_UNARY(acosh, value::acosh_of(v))
TINYSHARD_FLOAT_UNARY(atanh, value::atanh_of(v))
TINYSHARD_FLOAT_UNARY(erf, value::erf_of(v))
TINYSHARD_FLOAT_UNARY(logsigmoid, -value::softplus(-v))
TINYSHARD_GATED_UNARY(hardswish, v* clamped(v + 3, 0, 6) * (1.0 / 6))
TINYSHARD_GATED_UNARY(quick_gelu, v* value::sigmoid(v * 1.702))
TINYSHARD_GATED_UNARY(silu, v* value::sigmoid(v))
TINYSHARD_GATED_UNARY(mish, v* value::tanh(value::softplus(v)))
TINYSHARD_FLOAT_UNARY(softsign, softsign_of(v))

#undef TINYSHARD_UNARY
#undef TINYSHARD_FLOAT_UNARY
#undef TINYSHARD_GATED_UNARY

Tensor Tensor::swish() const { return silu(); }

Tensor Tensor::gelu(bool exact) const {
  Call call("gelu");
  const Value x(*this);
  if (!exact) return Value(tinyshard::gelu(value::cast(x, value::float_type(x.dtype())).node()));
  return in_floats(x, [](const Value& wide) -> Value {
    Value v = not_too_far_below_zero(wide);
    return v * 0.5 * (1 + value::erf_of(v * (1 / std::numbers::sqrt2)));
  });
}

Tensor Tensor::isinf(bool detect_positive, bool detect_negative) const {
  Call call("isinf");
  Value x(*this);
  constexpr double inf = std::numeric_limits<double>::infinity();
  if (detect_positive && detect_negative) return value::isinf(x);
  if (!is_float(x.dtype()) || (!detect_positive && !detect_negative)) {
    return value::constant(DType::Bool, false, x.shape());
  }
  return x == (detect_positive ? inf : -inf);
}

Tensor Tensor::bitwise_not(Caller caller) const {
  Call call("bitwise_not", caller);
  Value x(*this);
  if (is_float(x.dtype())) fail(fmt::format("needs integers or bools, not {}", value::text_of(x)));
  return Value(tinyshard::unary(Op::Not, x.node()));
}

Tensor Tensor::clamp(std::optional<Scalar> min, std::optional<Scalar> max, Caller caller) const {
  Call call("clamp", caller);
  if (!min && !max) fail("needs a min, a max or both");
  return clamped(*this, min, max);
}

Tensor Tensor::clip(std::optional<Scalar> min, std::optional<Scalar> max, Caller caller) const {
  return clamp(min, max, caller);
}

Tensor Tensor::hardsigmoid(double alpha, double beta) const {
  Call call("hardsigmoid");
  return in_floats(*this, [=](const Value& v) { return clamped(v * alpha + beta, 0, 1); });
}

Tensor Tensor::hardtanh(double min_val, double max_val) const {
  Call call("hardtanh");
  return clamped(*this, min_val, max_val);
}

Tensor Tensor::leaky_relu(double neg_slope) const {
  Call call("leaky_relu");
  return in_floats(*this, [=](const Value& v) { return value::where(v < 0, v * neg_slope, v); });
}

Tensor Tensor::elu(double alpha) const {
  Call call("elu");
  return in_floats(*this, [=](const Value& v) {
    return value::where(v > 0, v, exp_minus_one_below_zero(v) * alpha);
  });
}

Tensor Tensor::celu(double alpha) const {
  Call call("celu");
  return in_floats(*this, [=](const Value& v) {
    return value::where(v > 0, v, exp_minus_one_below_zero(v / alpha) * alpha);
  });
}

Tensor Tensor::selu(double alpha, double gamma) const {
  Call call("selu");
  return in_floats(*this, [=](const Value& v) {
    return value::where(v > 0, v, exp_minus_one_below_zero(v) * alpha) * gamma;
  });
}

Tensor Tensor::softplus(double beta) const {
  Call call("softplus");
  return in_floats(*this, [=](const Value& v) { return value::softplus(v * beta) * (1 / beta); });
}

Tensor Tensor::logaddexp(const Operand& x) const {
  Call call("logaddexp", x.caller);
  return value::in_floats(*this, x, [](const Value& a, const Value& b) {
    // max(a, b) + log(1 + exp(-|a - b|)); equal infinities have no difference.
    Value larger = value::where(a < b, b, a), smaller = value::where(a < b, a, b);
    Value gap = value::where((a == b) & value::isinf(a), 0.0, smaller - larger);
    return larger + value::log1p(value::exp(gap));
  });
}

Tensor Tensor::copysign(const Operand& x) const {
  Call call("copysign", x.caller);
  auto [a, b] = value::match(*this, x);
  if (!is_float(a.dtype())) {
    a = value::cast(a, value::float_type(a.dtype())), b = value::cast(b, a.dtype());
  }
  static constexpr DType kBits[] = {DType::I8, DType::I16, DType::I32, DType::I64};
  const DType bits = kBits[std::countr_zero(itemsize(b.dtype()))];
  Value negative =
      Value(UOp::make(Op::Bitcast, bits, {b.node()})) < 0;  // -0 and NaN have signs too
  return value::abs(a) * value::where(negative, value::constant(a.dtype(), -1.0), 1.0);
}

namespace {

// A number as exponent of integers is no element of their type: it may be as large as it likes.
Value integer_power_of_number(const Value& base, const Scalar& n) {
  if (n.integer < 0 && !n.is_beyond_i64()) {
    fail(fmt::format("{} to the power of {} is no integer: cast it to a float",
                     value::text_of(base), n.integer));
  }
  DType dtype = base.dtype() == DType::Bool ? DType::I32 : base.dtype();
  return value::power_of_integer(value::cast(base, dtype), static_cast<uint64_t>(n.integer));
}

Value float_power_of_number(const Value& base, double n) {
  constexpr double inf = std::numeric_limits<double>::infinity(), kByProducts = 64;
  if (n == std::trunc(n) && std::abs(n) <= kByProducts) {
    // The reciprocal is raised, no power inverted: so gradients at zeros and infinities are right.
    return value::power_of_integer(n < 0 ? value::reciprocal(base) : base,
                                   static_cast<uint64_t>(std::abs(n)));
  }
  if (n == 0.5) return value::where(base == -inf, inf, value::sqrt(base));
  return tinyshard::power(base.node(), value::constant(base.dtype(), n, base.shape()).node());
}

}  // namespace

Tensor pow(const Operand& base, const Operand& exponent) {
  Call call("pow", base.tensor ? exponent.caller : base.caller);
  Value x(base), n(exponent);
  if (n.is_number() && !x.is_number()) {
    if (!is_float(value::type_of(x, n))) return integer_power_of_number(x, n.number());
    return in_floats(value::cast(x, value::type_of(x, n)),
                     [&](const Value& v) { return float_power_of_number(v, n.number().real); });
  }
  auto [a, b] = value::match(x, n);
  if (a.dtype() == DType::Bool) a = value::cast(a, DType::I32), b = value::cast(b, DType::I32);
  if (!is_float(a.dtype())) return value::integer_power(a, b);
  return in_floats(a, [b = b](const Value& v) -> Value {
    return tinyshard::power(v.node(), value::cast(b, v.dtype()).node());
  });
}

Tensor Tensor::pow(const Operand& x) const {
  Call call("pow", x.caller);
  return tinyshard::pow(Operand(*this), x);
}

Tensor Tensor::isclose(const Operand& x, double rtol, double atol, bool equal_nan) const {
  Call call("isclose", x.caller);
  auto [a, b] = value::match(*this, x);
  // Differences of integers may not fit their type, nor tolerances a 16-bit float.
  DType wide = is_float(a.dtype()) ? accumulator(a.dtype()) : DType::F64;
  a = value::cast(a, wide), b = value::cast(b, wide);
  Value infinite = value::isinf(a) | value::isinf(b);
  Value close = value::where(infinite, a == b, value::abs(a - b) <= value::abs(b) * rtol + atol);
  return equal_nan ? close | (value::isnan(a) & value::isnan(b)) : close;
}

bool Tensor::allclose(const Operand& x, double rtol, double atol, bool equal_nan) const {
  Call call("allclose", x.caller);
  return isclose(x, rtol, atol, equal_nan).all().item<bool>();
}

}  // namespace tinyshard
