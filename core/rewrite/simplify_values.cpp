// Constructors of all nodes but Index sums: they apply the identities of their op.
#include <cmath>
#include <limits>

#include "core/rewrite/conditions.h"
#include "core/rewrite/fold.h"
#include "core/rewrite/simplifier.h"
#include "core/rewrite/type_facts.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

bool is_zero(const UOp& x) { return is_const(x) && const_bits(*x) == 0; }  // +0 only
bool is_all_ones(const UOp& x) { return is_const(x) && const_int(x.dtype(), -1, x.shape()) == x; }
UOp zero_like(const UOp& x) { return const_int(x.dtype(), 0, x.shape()); }

// 1 / c when that is exact and not subnormal.
std::optional<double> exact_reciprocal(const UOp& x) {
  double c = const_as_double(x);
  int exponent;
  if (std::fabs(std::frexp(c, &exponent)) != 0.5) return std::nullopt;
  int limit = x.dtype() == DType::F16 ? 14 : x.dtype() == DType::F64 ? 1021 : 125;
  return std::abs(exponent) <= limit ? std::optional(1 / c) : std::nullopt;
}

}  // namespace

UOp Simplifier::Impl::elementwise(Op op, DType dtype, std::span<const UOp> src) {
  if (UOp constant = fold_constants(op, dtype, src)) return constant;
  switch (op) {
    case Op::Cast:
      return convert(src[0], dtype);
    case Op::Bitcast:
      if (src[0].dtype() == dtype) return src[0];
      if (src[0].op() == Op::Bitcast) return elementwise(op, dtype, {src[0].src(0)});
      break;
    case Op::Not:
      return decided(negation(src[0]));
    case Op::Neg:
      if (src[0].op() == Op::Neg) return src[0].src(0);
      if (src[0].op() == Op::Sub && is_int(dtype)) {
        return arithmetic(Op::Sub, src[0].src(1), src[0].src(0));
      }
      if (is_int(dtype)) {
        if (UOp lifted = on_index(Op::Sub, zero_like(src[0]), src[0])) return lifted;
      }
      break;
    case Op::CmpLt:
    case Op::CmpEq:
    case Op::CmpNe:
      return decided(comparison(op, src[0], src[1]));
    case Op::Where:
      return select(src[0], src[1], src[2]);
    default:
      if (src.size() == 2) return arithmetic(op, src[0], src[1]);
  }
  return UOp::make(op, dtype, src);
}

UOp Simplifier::Impl::arithmetic(Op op, const UOp& a, const UOp& b) {
  if (info(op).element.commutative && is_const(a) && !is_const(b)) return arithmetic(op, b, a);
  const UOp both[] = {a, b};
  if (UOp constant = fold_constants(op, a.dtype(), both)) return constant;
  if (a == b && (op == Op::Max || op == Op::And || op == Op::Or)) return a;
  UOp r;
  if (is_float(a.dtype())) {
    r = float_arithmetic(op, a, b);
  } else if (a.dtype() == DType::Bool) {
    if (op == Op::Mul) return arithmetic(Op::And, a, b);
    if (op == Op::Add || op == Op::Max) return arithmetic(Op::Or, a, b);
    bool scalar = a->rank == 0;
    if (op == Op::And && scalar) return decided(conjunction(algebra_, a, b));
    if (op == Op::Or && scalar) return decided(disjunction(algebra_, a, b));
    if (is_const(b)) {
      bool t = const_bits(*b) != 0;
      if (op == Op::And) return t ? a : b;
      if (op == Op::Or) return t ? b : a;
      if (op == Op::Xor) return t ? decided(negation(a)) : a;
    }
    if (op == Op::Xor && a == b) return zero_like(a);
  } else {
    r = int_arithmetic(op, a, b);
  }
  return r ? r : binary(op, a, b);
}

UOp Simplifier::Impl::float_arithmetic(Op op, const UOp& a, const UOp& b) {
  bool constant = is_const(b);
  double c = constant ? const_as_double(b) : 0;
  switch (op) {
    case Op::Or:
      if (is_zero(b)) return a;
      break;
    case Op::Add:  // -0 + 0 is 0
      if (constant && c == 0 && std::signbit(c)) return a;
      if (b.op() == Op::Neg) return arithmetic(Op::Sub, a, b.src(0));
      if (a.op() == Op::Neg && !constant) return arithmetic(Op::Sub, b, a.src(0));
      break;
    case Op::Sub:
      if (is_zero(b)) return a;
      if (b.op() == Op::Neg) return arithmetic(Op::Add, a, b.src(0));
      break;
    case Op::Mul:
      if (constant && c == 1) return a;
      if (constant && c == -1) return elementwise(Op::Neg, a.dtype(), {a});
      if (a.op() == Op::Neg && b.op() == Op::Neg) return arithmetic(op, a.src(0), b.src(0));
      if (a.op() == Op::Neg && constant) return arithmetic(op, a.src(0), const_like(b, -c));
      break;
    case Op::Div:
      if (constant && c == 1) return a;
      if (constant && c == -1) return elementwise(Op::Neg, a.dtype(), {a});
      if (constant) {
        if (auto inverse = exact_reciprocal(b))
          return arithmetic(Op::Mul, a, const_like(b, *inverse));
      }
      if (is_const(a, 1)) return elementwise(Op::Recip, b.dtype(), {b});
      break;
    case Op::Max:
      if (constant && c == -std::numeric_limits<double>::infinity()) return a;
      break;
    default:
      break;
  }
  return {};
}

UOp Simplifier::Impl::int_arithmetic(Op op, const UOp& a, const UOp& b) {
  if (UOp lifted = on_index(op, a, b)) return lifted;
  bool constant = is_const(b);
  if (constant) {
    bool zero = is_zero(b), one = const_bits(*b) == 1;
    // (x + c) + d and (x * c) * d: wrapping arithmetic is associative.
    if ((op == Op::Add || op == Op::Mul || op == Op::And || op == Op::Or || op == Op::Xor) &&
        a.op() == op && is_const(a.src(1))) {
      return arithmetic(op, a.src(0), arithmetic(op, a.src(1), b));
    }
    switch (op) {
      case Op::Add:
      case Op::Or:
      case Op::Xor:
      case Op::Shl:
      case Op::Shr:
        if (zero) return a;
        if (op == Op::Or && is_all_ones(b)) return b;
        break;
      case Op::Sub:
        if (zero) return a;
        return arithmetic(Op::Add, a, elementwise(Op::Neg, b.dtype(), {b}));
      case Op::Mul:
      case Op::And:
        if (zero) return b;
        if (op == Op::Mul && one) return a;
        if (op == Op::And && is_all_ones(b)) return a;
        break;
      case Op::IDiv:
        if (one) return a;
        if (zero) return b;
        break;
      case Op::Mod:
        if (one || zero) return zero_like(a);
        break;
      case Op::Max: {
        Interval all = limits(b.dtype());
        bool wide = bits_of(b.dtype()) == 64;
        int64_t least = !is_signed(b.dtype()) ? 0
                        : wide                ? std::numeric_limits<int64_t>::min()
                                              : all.low;
        if (const_bits(*b) == least) return a;
        break;
      }
      default:
        break;
    }
  }
  if (is_zero(a) && (op == Op::IDiv || op == Op::Mod || op == Op::Shl || op == Op::Shr)) return a;
  if (is_zero(a) && op == Op::Sub) return elementwise(Op::Neg, b.dtype(), {b});
  if (a == b && (op == Op::Sub || op == Op::Xor || op == Op::Mod)) return zero_like(a);
  if (op == Op::Add && b.op() == Op::Neg) return arithmetic(Op::Sub, a, b.src(0));
  if (op == Op::Sub && b.op() == Op::Neg) return arithmetic(Op::Add, a, b.src(0));
  return {};
}

UOp Simplifier::Impl::comparison(Op op, const UOp& a, const UOp& b) {
  if (info(op).element.commutative && is_const(a) && !is_const(b)) return comparison(op, b, a);
  DType dtype = a.dtype();
  auto truth = [&](bool value) { return const_int(DType::Bool, value, a.shape()); };
  const UOp both[] = {a, b};
  if (UOp constant = fold_constants(op, DType::Bool, both)) return constant;
  if (a == b && (op == Op::CmpLt || !is_float(dtype))) return truth(op == Op::CmpEq);

  // Comparisons of Index values, and of integers that are Index values.
  std::optional<Linear> x, y;
  if (dtype == DType::Index) {
    x = linear(a);
    y = linear(b);
  } else if (is_int(dtype)) {
    x = as_index(a);
    if (x) y = as_index(b);
  }
  if (x && y) {
    try {
      Linear difference = algebra_.add(*x, *y, -1);
      algebra_.recombine(difference);
      return op == Op::CmpLt ? less_than_zero(algebra_, difference)
                             : equal_to_zero(algebra_, difference, op == Op::CmpNe);
    } catch (const IndexOverflow&) {  // NOLINT(bugprone-empty-catch)
      // Too large for this way: the others follow.
    }
  }

  if (dtype == DType::Bool && op != Op::CmpLt && is_const(b)) {
    bool same = (const_bits(*b) != 0) == (op == Op::CmpEq);
    return same ? a : negation(a);
  }
  // Cast(condition) != 0 is the condition.
  if (op != Op::CmpLt && a.op() == Op::Cast && a.src(0).dtype() == DType::Bool && is_const(b)) {
    bool zero = const_as_double(b) == 0, one = const_as_double(b) == 1;
    if (!zero && !one) return truth(op == Op::CmpNe);
    return one == (op == Op::CmpEq) ? a.src(0) : negation(a.src(0));
  }
  if (op == Op::CmpLt && is_int(dtype)) {
    bool wide = bits_of(dtype) == 64;
    Interval all = limits(dtype);
    int64_t least = !is_signed(dtype) ? 0 : wide ? std::numeric_limits<int64_t>::min() : all.low;
    int64_t most = !wide ? all.high : is_signed(dtype) ? std::numeric_limits<int64_t>::max() : -1;
    if (is_const(b) && const_bits(*b) == least) return truth(false);
    if (is_const(a) && const_bits(*a) == most) return truth(false);
  }
  return UOp::make(op, DType::Bool, {a, b});
}

UOp Simplifier::Impl::negation(const UOp& x) {
  if (x.dtype() == DType::Bool) return negated(algebra_, x);
  return x.op() == Op::Not ? x.src(0) : unary(Op::Not, x);
}

UOp Simplifier::Impl::select(const UOp& condition, const UOp& a, const UOp& b) {
  if (is_const(condition)) return const_bits(*condition) ? a : b;
  if (a == b) return a;
  if (condition.op() == Op::Not) return select(condition.src(0), b, a);
  if (a.op() == Op::Where && a.src(0) == condition) return select(condition, a.src(1), b);
  if (b.op() == Op::Where && b.src(0) == condition) return select(condition, a, b.src(2));
  // Both masks of a mask within a mask.
  if (a.op() == Op::Where && a.src(2) == b) {
    return select(arithmetic(Op::And, condition, a.src(0)), a.src(1), b);
  }
  if (a.dtype() == DType::Bool) {
    if (is_const(a) && is_const(b))
      return const_bits(*a) ? condition : decided(negation(condition));
    if (is_const(b)) {
      return const_bits(*b) ? arithmetic(Op::Or, decided(negation(condition)), a)
                            : arithmetic(Op::And, condition, a);
    }
    if (is_const(a)) {
      return const_bits(*a) ? arithmetic(Op::Or, condition, b)
                            : arithmetic(Op::And, decided(negation(condition)), b);
    }
  }
  // The load is 0 already wherever the condition fails.
  if (a.op() == Op::Load && a->sources == 3 && is_zero(b) &&
      arithmetic(Op::And, a.src(2), condition) == a.src(2)) {
    return a;
  }
  return where(condition, a, b);
}

UOp Simplifier::Impl::convert(const UOp& x, DType to) {
  if (x.dtype() == to) return x;
  if (x.op() != Op::Cast) return cast(x, to);
  const UOp& inner = x.src(0);
  DType from = inner.dtype(), middle = x.dtype();
  bool survives = holds_all(middle, from);
  if (from == DType::Index && !survives && is_int(middle)) survives = as_index(x).has_value();
  // Floats saturate where integers wrap.
  bool same_rule = !is_float(middle) || is_float(to) || to == DType::Bool || is_float(from) ||
                   holds_all(to, from);
  if (survives && same_rule) return convert(inner, to);
  if (is_integer(from) && is_integer(middle) && is_integer(to) && bits_of(to) <= bits_of(middle)) {
    return convert(inner, to);
  }
  return cast(x, to);
}

}  // namespace tinyshard
