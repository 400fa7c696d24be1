// Operators: how operands meet, and what each operator is made of.
#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/view_internal.h"

namespace tinyshard {
namespace value {
namespace {

Value apply(Op op, const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  return tinyshard::binary(op, x.node(), y.node());
}

// The same with another op for bools, whose sum is `or` and whose product is `and`.
Value apply(Op op, Op for_bools, const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  return tinyshard::binary(x.dtype() == DType::Bool ? for_bools : op, x.node(), y.node());
}

Value apply_bits(Op op, const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  if (is_float(x.dtype())) {
    fail(fmt::format("needs integers or bools, not {} and {}", text_of(a), text_of(b)));
  }
  return tinyshard::binary(op, x.node(), y.node());
}

// Returns where a truncated quotient with this rest lies above the one that rounds down.
Value is_above_floor(const Value& rest, const Value& divisor) {
  return (rest != 0) & ((rest < 0) != (divisor < 0));
}

std::pair<Value, Value> match_integers(const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  if (x.dtype() == DType::Bool) return {cast(x, DType::I32), cast(y, DType::I32)};
  return {x, y};
}

}  // namespace

Value fmod(const Value& a, const Value& b) {
  return in_floats(a, b, [](const Value& v, const Value& w) {
    return Value(tinyshard::binary(Op::Mod, v.node(), w.node()));
  });
}

Value operator+(const Value& a, const Value& b) { return apply(Op::Add, Op::Or, a, b); }
Value operator-(const Value& a, const Value& b) { return apply(Op::Sub, Op::Xor, a, b); }
Value operator*(const Value& a, const Value& b) { return apply(Op::Mul, Op::And, a, b); }
Value operator&(const Value& a, const Value& b) { return apply_bits(Op::And, a, b); }
Value operator|(const Value& a, const Value& b) { return apply_bits(Op::Or, a, b); }
Value operator^(const Value& a, const Value& b) { return apply_bits(Op::Xor, a, b); }

Value operator/(const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  DType dtype = float_type(x.dtype());
  return tinyshard::binary(Op::Div, cast(x, dtype).node(), cast(y, dtype).node());
}

Value operator-(const Value& x) {
  if (x.dtype() == DType::Bool) return !x;
  return tinyshard::unary(Op::Neg, x.node());
}

Value operator!(const Value& x) {
  if (x.dtype() != DType::Bool) return x == 0;
  return tinyshard::unary(Op::Not, x.node());
}

// --- comparisons: of numbers, whatever types hold them -------------------------------------------

namespace {

DType integer_type(const Value& x) { return x.dtype() == DType::Bool ? DType::I32 : x.dtype(); }
Value integers(const Value& x) { return cast(x, integer_type(x)); }

// Tells whether the integers x are compared with a number `n` that their type does not hold.
bool meets_integers(const Value& n, const Value& x) {
  if (!n.is_number() || x.is_number() || is_float(x.dtype())) return false;
  return n.number().is_float() || !fits(n.number(), integer_type(x));
}

Value everywhere(const Value& x, bool holds) {
  return constant(DType::Bool, holds, x.shape()).tensor().shard_like(x.tensor());
}

// Where the number lies among the values of an integer type.
enum class Place : uint8_t { Nowhere, Below, Inside, Above };  // Nowhere: NaN

Place place_of(const Scalar& n, DType dtype) {
  if (std::isnan(n.real)) return Place::Nowhere;
  if (fits(n, dtype)) {  // a fraction may still lie outside: -0.5 is below 0
    bool below = is_unsigned_int(dtype) && n.real < 0;
    return below ? Place::Below : Place::Inside;
  }
  return n.real < 0 ? Place::Below : Place::Above;
}

// The next integer up or down, in the type.
Value rounded(const Scalar& n, DType dtype, bool up, DimSpan shape) {
  if (!n.is_float()) return constant(dtype, n, shape);
  return constant(dtype, up ? std::ceil(n.real) : std::floor(n.real), shape);
}

// x < n and n < x for a number n. The integers below 2.5 are those below 3, and those above it are
// above 2; the least integer above the largest of a type is not one of them.
Value less(const Value& x, const Scalar& n) {
  Place place = place_of(n, x.dtype());
  if (place != Place::Inside) return everywhere(x, place == Place::Above);
  if (n.is_float() && !fits(std::ceil(n.real), x.dtype())) return everywhere(x, true);
  return tinyshard::binary(Op::CmpLt, x.node(), rounded(n, x.dtype(), true, x.shape()).node());
}
Value greater(const Value& x, const Scalar& n) {
  Place place = place_of(n, x.dtype());
  if (place != Place::Inside) return everywhere(x, place == Place::Below);
  if (n.is_float() && !fits(std::floor(n.real), x.dtype())) return everywhere(x, true);
  return tinyshard::binary(Op::CmpLt, rounded(n, x.dtype(), false, x.shape()).node(), x.node());
}
Value equal(const Value& x, const Scalar& n) {
  bool whole = !n.is_float() || std::trunc(n.real) == n.real;
  if (!whole || place_of(n, x.dtype()) != Place::Inside) return everywhere(x, false);
  return tinyshard::binary(Op::CmpEq, x.node(), constant(x.dtype(), n, x.shape()).node());
}

// Signed integers and u64 have no common integer type: below zero the order is clear, above it u64
// holds both.
bool is_signed_with_u64(const Value& a, const Value& b) {
  if (a.is_number() || b.is_number()) return false;
  return (is_signed_int(a.dtype()) && b.dtype() == DType::U64) ||
         (is_signed_int(b.dtype()) && a.dtype() == DType::U64);
}

}  // namespace

Value operator<(const Value& a, const Value& b) {
  if (meets_integers(b, a)) return less(integers(a), b.number());
  if (meets_integers(a, b)) return greater(integers(b), a.number());
  if (is_signed_with_u64(a, b)) {
    Value beyond = cast(a, DType::U64) < cast(b, DType::U64);
    return is_signed_int(a.dtype()) ? (a < 0) | beyond : (b >= 0) & beyond;
  }
  auto [x, y] = match(a, b);
  if (x.dtype() == DType::Bool) return (!x) & y;
  return tinyshard::binary(Op::CmpLt, x.node(), y.node());
}
Value operator>(const Value& a, const Value& b) { return b < a; }
Value operator==(const Value& a, const Value& b) {
  if (meets_integers(b, a)) return equal(integers(a), b.number());
  if (meets_integers(a, b)) return equal(integers(b), a.number());
  if (is_signed_with_u64(a, b)) {
    Value same = cast(a, DType::U64) == cast(b, DType::U64);
    return (is_signed_int(a.dtype()) ? a >= 0 : b >= 0) & same;
  }
  return apply(Op::CmpEq, a, b);
}
Value operator!=(const Value& a, const Value& b) {
  if (meets_integers(b, a) || meets_integers(a, b) || is_signed_with_u64(a, b)) return !(a == b);
  return apply(Op::CmpNe, a, b);
}
Value operator<=(const Value& a, const Value& b) {
  bool integers = meets_integers(a, b) || meets_integers(b, a) || is_signed_with_u64(a, b);
  if (!integers) {
    auto [x, y] = match(a, b);
    integers = !is_float(x.dtype());
  }
  bool has_nan = (a.is_number() && std::isnan(a.number().real)) ||
                 (b.is_number() && std::isnan(b.number().real));
  // Not the opposite of >, because of NaN.
  return integers && !has_nan ? !(b < a) : (a < b) | (a == b);
}
Value operator>=(const Value& a, const Value& b) { return b <= a; }

Value trunc_div(const Value& a, const Value& b) {
  auto [x, y] = match_integers(a, b);
  if (is_float(x.dtype())) {
    return in_floats(x, y, [](const Value& v, const Value& w) { return trunc(v / w); });
  }
  return tinyshard::binary(Op::IDiv, x.node(), y.node());
}

Value floor_div(const Value& a, const Value& b) {
  auto [x, y] = match_integers(a, b);
  if (is_float(x.dtype())) {
    // As many times as the divisor fits: 1 / 0.1 rounds to 10, but fits nine times.
    return in_floats(x, y, [](const Value& v, const Value& w) {
      Value rest = fmod(v, w), quotient = where(w == 0, v, v - rest) / w, whole = floor(quotient);
      Value times = where(quotient - whole > 0.5, whole + 1, whole);
      return where(is_above_floor(rest, w), times - 1, times);
    });
  }
  Value quotient = tinyshard::binary(Op::IDiv, x.node(), y.node());
  if (is_unsigned_int(x.dtype())) return quotient;
  Value rest = tinyshard::binary(Op::Mod, x.node(), y.node());
  return quotient - cast(is_above_floor(rest, y), x.dtype());
}

Value mod(const Value& a, const Value& b) {
  auto [x, y] = match_integers(a, b);
  if (is_float(x.dtype())) {
    return in_floats(x, y, [](const Value& v, const Value& w) {
      Value rest = fmod(v, w);
      return where(is_above_floor(rest, w), rest + w, rest);
    });
  }
  Value rest = tinyshard::binary(Op::Mod, x.node(), y.node());
  if (is_unsigned_int(x.dtype())) return rest;
  return where(is_above_floor(rest, y), rest + y, rest);
}

Value maximum(const Value& a, const Value& b) { return apply(Op::Max, Op::Or, a, b); }

Value minimum(const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  if (x.dtype() == DType::Bool) return x & y;
  if (is_float(x.dtype())) return -maximum(-x, -y);
  auto inverted = [](const Value& v) -> Value { return tinyshard::unary(Op::Not, v.node()); };
  return inverted(maximum(inverted(x), inverted(y)));  // unlike -x, ~x never overflows
}

Value where(const Value& condition, const Value& a, const Value& b) {
  auto [x, y] = match(a, b);
  Value c = cast(condition, DType::Bool);
  Dims shape = broadcast_shape(c.shape(), x.shape());
  return tinyshard::where(broadcast_to(c, shape).node(), broadcast_to(x, shape).node(),
                          broadcast_to(y, shape).node());
}

Value detach(const Value& x) { return tinyshard::unary(Op::Detach, x.node()); }

Value contiguous(const Value& x) {
  const Op op = under_names(x.node()).op();
  if (op == Op::Buffer || op == Op::Contiguous) return x;
  return tinyshard::unary(Op::Contiguous, x.node());
}

}  // namespace value

using value::Value;

// --- methods and operators -----------------------------------------------------------------------

#define TINYSHARD_BINARY(method, text, expression) \
  Tensor Tensor::method(const Operand& x) const {  \
    Call call(text, x.caller);                     \
    Value a(*this), b(x);                          \
    return expression;                             \
  }

TINYSHARD_BINARY(add, "add", a + b)
TINYSHARD_BINARY(sub, "sub", a - b)
TINYSHARD_BINARY(mul, "mul", a* b)
TINYSHARD_BINARY(mod, "mod", value::mod(a, b))
TINYSHARD_BINARY(eq, "eq", a == b)
TINYSHARD_BINARY(ne, "ne", a != b)
TINYSHARD_BINARY(lt, "lt", a < b)
TINYSHARD_BINARY(gt, "gt", a > b)
TINYSHARD_BINARY(le, "le", a <= b)
TINYSHARD_BINARY(ge, "ge", a >= b)
TINYSHARD_BINARY(bitwise_and, "bitwise_and", a& b)
TINYSHARD_BINARY(bitwise_or, "bitwise_or", a | b)
TINYSHARD_BINARY(bitwise_xor, "bitwise_xor", a ^ b)
TINYSHARD_BINARY(maximum, "maximum", value::maximum(a, b))
TINYSHARD_BINARY(minimum, "minimum", value::minimum(a, b))

#undef TINYSHARD_BINARY

#define TINYSHARD_OPERATOR(symbol, text)                       \
  Tensor operator symbol(const Operand& a, const Operand& b) { \
    Call call(text, a.tensor ? b.caller : a.caller);           \
    return Value(a) symbol Value(b);                           \
  }

TINYSHARD_OPERATOR(+, "add")
TINYSHARD_OPERATOR(-, "sub")
TINYSHARD_OPERATOR(*, "mul")
TINYSHARD_OPERATOR(/, "div")
TINYSHARD_OPERATOR(&, "bitwise_and")
TINYSHARD_OPERATOR(|, "bitwise_or")
TINYSHARD_OPERATOR(^, "bitwise_xor")
TINYSHARD_OPERATOR(<, "lt")
TINYSHARD_OPERATOR(>, "gt")
TINYSHARD_OPERATOR(<=, "le")
TINYSHARD_OPERATOR(>=, "ge")
TINYSHARD_OPERATOR(==, "eq")
TINYSHARD_OPERATOR(!=, "ne")

#undef TINYSHARD_OPERATOR

Tensor operator%(const Operand& a, const Operand& b) {
  Call call("mod", b.caller);
  return value::mod(a, b);
}
Tensor div(const Operand& a, const Operand& b, Rounding rounding) {
  Call call("div", a.tensor ? b.caller : a.caller);
  switch (rounding) {
    case Rounding::Floor:
      return value::floor_div(a, b);
    case Rounding::Trunc:
      return value::trunc_div(a, b);
    default:
      return Value(a) / Value(b);
  }
}

Tensor Tensor::div(const Operand& x, Rounding rounding) const {
  Call call("div", x.caller);
  return tinyshard::div(Operand(*this), x, rounding);
}

Tensor Tensor::fmod(const Operand& x) const {
  Call call("fmod", x.caller);
  auto [a, b] = value::match(*this, x);
  if (is_float(a.dtype())) return value::fmod(a, b);
  if (a.dtype() == DType::Bool) return a & !b;
  return Value(tinyshard::binary(Op::Mod, a.node(), b.node()));
}

namespace {

Value shift(Op op, const Value& a, const Value& b) {
  auto [x, y] = value::match(a, b);
  if (!is_int(x.dtype())) {
    fail(fmt::format("needs integers, not {} and {}", value::text_of(a), value::text_of(b)));
  }
  // Beyond the width a right shift leaves the sign, as one by the width less one does.
  int64_t last = 8 * static_cast<int64_t>(itemsize(x.dtype())) - 1;
  if (op == Op::Shr && is_signed_int(x.dtype())) {
    y = b.is_number()
            ? value::constant(y.dtype(), std::min(last, const_as_int(y.node())), y.shape())
            : value::minimum(y, last);
  }
  return Value(tinyshard::binary(op, x.node(), y.node()));
}

Value left(const Value& a, const Value& b) { return shift(Op::Shl, a, b); }
Value right(const Value& a, const Value& b) { return shift(Op::Shr, a, b); }

}  // namespace

Tensor Tensor::lshift(const Operand& x) const {
  Call call("lshift", x.caller);
  return left(*this, x);
}

Tensor Tensor::rshift(const Operand& x) const {
  Call call("rshift", x.caller);
  return right(*this, x);
}

Tensor operator<<(const Operand& a, const Operand& b) {
  Call call("lshift", b.caller);
  return left(a, b);
}
Tensor operator>>(const Operand& a, const Operand& b) {
  Call call("rshift", b.caller);
  return right(a, b);
}

Tensor operator-(const Operand& x) {
  Call call("neg", x.caller);
  return -Value(x);
}
Tensor operator~(const Operand& x) {
  Call call("bitwise_not", x.caller);
  return x.tensor->bitwise_not(x.caller);
}
Tensor operator!(const Operand& x) {
  Call call("logical_not", x.caller);
  return !Value(x);
}

Tensor Tensor::where(const Operand& x, const Operand& y) const {
  Call call("where", x.caller);
  return value::where(*this, x, y);
}

Tensor Tensor::masked_fill(const Tensor& mask, const Operand& fill) const {
  Call call("masked_fill", fill.caller);
  return value::where(mask, fill, *this);
}

Tensor Tensor::lerp(const Operand& end, const Operand& weight) const {
  Call call("lerp", end.caller);
  Value w(weight);
  auto [a, b] = value::match(*this, end);
  // In the type of the result, or f32 if that is narrower: differences of unsigned integers are
  // none.
  DType type = value::type_of(a, w), wide = is_narrow(type) ? DType::F32 : type;
  if (!w.is_number()) w = value::cast(w, wide);
  a = value::cast(a, wide), b = value::cast(b, wide);
  return value::cast(a + (b - a) * w, type);
}

// --- writing -------------------------------------------------------------------------------------

namespace {

// Writes what f makes of the left side, as it is now, and of x. That has the left side's type and
// shape.
//
//   t[3] += x     t.assign(where(row 3, t + (x moved to row 3), t)): reads and writes the row alone
template <class F>
void update(const Tensor& left, const value::Way& way, const Operand& x, const F& f) {
  const Value old = value::at_end_of(way), result = f(old, Value(x));
  if (result.dtype() != old.dtype()) {
    fail(fmt::format(
        "the left side is {} and stays it, but the result is {}: cast a side to the "
        "type of the other one first, or make a tensor of the result, as t = t + x does",
        left.describe(), value::text_of(result)));
  }
  if (!std::ranges::equal(result.shape(), old.shape())) {
    fail(fmt::format("the left side is {} and stays it, but the result is {}", left.describe(),
                     value::text_of(result)));
  }
  bool is_plain = true;
  for (int64_t d = 0; d < old.rank(); ++d) is_plain = is_plain && !value::size_along(old, d);
  if (way.steps.empty() || !is_plain) return value::write(way, result);
  Value other(x);
  const auto there = value::placed(way, other.is_number() ? old : other);
  if (!there) return value::write(way, result);
  if (!other.is_number()) {
    // The elements beside the part are divided by something, too.
    other = !there->inside
                ? there->value
                : value::where(*there->inside, there->value, value::constant(other.dtype(), 1));
  }
  const Value whole = Tensor(way.whole);
  value::write_whole(way, value::over({f(whole, other), there->inside}, whole));
}

}  // namespace

#define TINYSHARD_UPDATE(symbol, f)                                 \
  const Tensor& Tensor::operator symbol(const Operand & x) const& { \
    Call call(#symbol, x.caller);                                   \
    update(*this, value::way_to(*this, false), x, f);               \
    return *this;                                                   \
  }                                                                 \
  Tensor Tensor::operator symbol(const Operand & x) const&& {       \
    Call call(#symbol, x.caller);                                   \
    update(*this, value::way_to_temporary(*this), x, f);            \
    return *this;                                                   \
  }

TINYSHARD_UPDATE(+=, std::plus<Value>())
TINYSHARD_UPDATE(-=, std::minus<Value>())
TINYSHARD_UPDATE(*=, std::multiplies<Value>())
TINYSHARD_UPDATE(/=, std::divides<Value>())
TINYSHARD_UPDATE(%=, value::mod)
TINYSHARD_UPDATE(&=, std::bit_and<Value>())
TINYSHARD_UPDATE(|=, std::bit_or<Value>())
TINYSHARD_UPDATE(^=, std::bit_xor<Value>())
TINYSHARD_UPDATE(<<=, left)
TINYSHARD_UPDATE(>>=, right)

#undef TINYSHARD_UPDATE

Tensor Tensor::operator=(const Operand& value) const&& {
  Call call("=", value.caller);
  value::write(value::way_to_temporary(*this), value::cast(value, dtype()));
  return *this;
}

Tensor Tensor::operator=(std::initializer_list<Nested> rows) const&& {
  const Caller caller = rows.size() > 0 ? rows.begin()->caller : Caller::current();
  return static_cast<const Tensor&&>(*this) = Operand(Tensor(rows), caller);
}

}  // namespace tinyshard
