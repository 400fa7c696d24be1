// Index nodes as linear forms, and integers that are Index values.
#include <algorithm>

#include "core/rewrite/conditions.h"
#include "core/rewrite/fold.h"
#include "core/rewrite/simplifier.h"
#include "core/rewrite/type_facts.h"
#include "core/uop/args.h"

namespace tinyshard {

IndexAlgebra::Form Simplifier::Impl::index_form(const UOp& x) {
  try {
    bool division = x.op() == Op::IDiv || x.op() == Op::Mod;
    if (division && is_const(x.src(1)) && const_bits(*x.src(1)) > 0) {
      Form dividend = *algebra_.find(x.src(0));
      int64_t divisor = const_bits(*x.src(1));
      return x.op() == Op::IDiv ? algebra_.quotient(dividend, divisor)
                                : algebra_.remainder(dividend, divisor);
    }
    return algebra_.keep(index_value(x));
  } catch (const IndexOverflow&) {
    return algebra_.keep(opaque(x));
  }
}

Linear Simplifier::Impl::index_value(const UOp& x) {
  auto operand = [&](size_t i) -> const Linear& { return linear(x.src(i)); };
  auto combined = [&](const Linear& a, const Linear& b, int64_t scale) {
    Linear r = algebra_.add(a, b, scale);
    algebra_.recombine(r);
    return r;
  };
  switch (x.op()) {
    case Op::Const:
      return Linear(const_bits(*x));
    case Op::Neg:
      return algebra_.scaled(operand(0), -1);
    case Op::Add:
      return combined(operand(0), operand(1), 1);
    case Op::Sub:
      return combined(operand(0), operand(1), -1);
    case Op::Mul:
      return algebra_.multiply(operand(0), operand(1));
    case Op::IDiv:
    case Op::Mod:
      return index_division(x);
    case Op::Max:
      return index_max(operand(0), operand(1));
    case Op::Cast:
      return index_cast(x);
    case Op::Where:
      return index_where(x);
    default:
      return opaque(x);
  }
}

Linear Simplifier::Impl::index_division(const UOp& x) {
  const Linear &a = linear(x.src(0)), &b = linear(x.src(1));
  bool quotient = x.op() == Op::IDiv;
  if (b.is_constant() && b.constant != 0) {
    int64_t sign = b.constant < 0 ? -1 : 1;
    Linear dividend = algebra_.scaled(a, sign);
    int64_t divisor = checked_mul(b.constant, sign);
    return quotient ? algebra_.quotient(dividend, divisor)
                    : algebra_.scaled(algebra_.remainder(dividend, divisor), sign);
  }
  Interval below = algebra_.interval(algebra_.add(a, b, -1)), i = algebra_.interval(a);
  if (i.low >= 0 && below.high < 0) return quotient ? Linear(0) : a;
  if (a == b && algebra_.interval(b).low > 0) return Linear(quotient ? 1 : 0);
  return opaque(x);
}

Linear Simplifier::Impl::index_cast(const UOp& x) {
  UOp from = result(x.src(0));
  if (is_const(from)) {
    UOp folded = fold_constants(Op::Cast, DType::Index, std::span(&from, 1));
    return Linear(const_bits(*folded));
  }
  if (auto known = as_index(from)) return *known;
  // A widened value is as small as it was before.
  Interval bounds = limits(from.dtype());
  for (const UOp* s = &from; s->op() == Op::Cast && !is_float((*s)->src()[0].dtype());) {
    const UOp& inner = (*s)->src()[0];
    if (!holds_all(s->dtype(), inner.dtype())) break;
    bounds = intersection(bounds, limits(inner.dtype()));
    s = &inner;
  }
  return algebra_.atom(cast(from, DType::Index), bounds);
}

Linear Simplifier::Impl::index_where(const UOp& x) {
  UOp condition = result(x.src(0));
  const Linear &a = linear(x.src(1)), &b = linear(x.src(2));
  if (is_const(condition)) return const_bits(*condition) ? a : b;
  if (a == b) return a;
  bool opposite = condition.op() == Op::Not;
  if (opposite) condition = UOp(condition.src(0));
  Interval i = algebra_.interval(a), j = algebra_.interval(b);
  Interval hull{std::min(i.low, j.low), std::max(i.high, j.high)};
  UOp if_true = result(x.src(1)), if_false = result(x.src(2));
  if (opposite) std::swap(if_true, if_false);
  return algebra_.atom(where(condition, if_true, if_false), hull);
}

Linear Simplifier::Impl::index_max(const Linear& a, const Linear& b) {
  Interval difference = algebra_.interval(algebra_.add(a, b, -1));
  if (difference.low >= 0) return a;
  if (difference.high <= 0) return b;
  Interval i = algebra_.interval(a), j = algebra_.interval(b);
  UOp x = algebra_.node(a), y = algebra_.node(b);
  if (is_const(x)) std::swap(x, y);
  return algebra_.atom(binary(Op::Max, x, y), {std::max(i.low, j.low), std::max(i.high, j.high)});
}

// The Index form of an integer that is one: Cast(index) whose value survives the cast, or a
// constant.
std::optional<Linear> Simplifier::Impl::as_index(const UOp& x) const {
  if (x->rank != 0 || !is_int(x.dtype())) return std::nullopt;
  if (is_const(x)) {
    int64_t value = const_bits(*x);
    bool huge = x.dtype() == DType::U64 && value < 0;
    if (huge || magnitude(value) >= static_cast<uint64_t>(Interval::kUnbounded))
      return std::nullopt;
    return Linear(value);
  }
  if (x.op() != Op::Cast || x.src(0).dtype() != DType::Index) return std::nullopt;
  auto form = algebra_.find(x.src(0));
  if (!form || !fits(algebra_.interval(algebra_.linear(*form)), x.dtype())) return std::nullopt;
  return algebra_.linear(*form);
}

// Integer arithmetic on loop indices, such as that of an arange, done as Index arithmetic; null
// when it is not that, or may leave the type.
UOp Simplifier::Impl::on_index(Op op, const UOp& a, const UOp& b) {
  if (is_const(a) && is_const(b)) return {};
  auto x = as_index(a), y = x ? as_index(b) : std::nullopt;
  if (!y) return {};
  Linear r;
  try {
    switch (op) {
      case Op::Add:
        r = algebra_.add(*x, *y);
        break;
      case Op::Sub:
        r = algebra_.add(*x, *y, -1);
        break;
      case Op::Mul:
        r = algebra_.multiply(*x, *y);
        break;
      case Op::Max:
        r = index_max(*x, *y);
        break;
      case Op::IDiv:
      case Op::Mod: {
        // Truncation is floor where nothing is negative.
        if (!y->is_constant() || y->constant <= 0 || algebra_.interval(*x).low < 0) return {};
        r = op == Op::IDiv ? algebra_.quotient(*x, y->constant)
                           : algebra_.remainder(*x, y->constant);
        break;
      }
      default:
        return {};
    }
    algebra_.recombine(r);
  } catch (const IndexOverflow&) {
    return {};
  }
  if (!fits(algebra_.interval(r), a.dtype())) return {};
  if (r.is_constant()) return const_int(a.dtype(), r.constant);
  return cast(algebra_.node(r), a.dtype());
}

// The index needs to be right only where the load happens.
UOp Simplifier::Impl::index_given(const UOp& index, const UOp& valid) {
  auto form = algebra_.find(index);
  if (!form) return index;
  bool simple = true;
  for (const Term& t : algebra_.linear(*form).terms) {
    Op op = algebra_.atom_node(t.atom).op();
    simple = simple && (op == Op::Range || op == Op::DeviceCoordinate || op == Op::Cast);
  }
  if (simple) return index;
  UOp condition = condition_ ? arithmetic(Op::And, condition_, valid) : valid;
  if (is_const(condition)) return index;
  auto known = std::ranges::find(given_, condition, &decltype(given_)::value_type::first);
  if (known == given_.end()) {
    given_.push_back({condition, std::make_unique<Impl>(condition)});
    known = given_.end() - 1;
  }
  return simplify(known->second->simplify(index));
}

}  // namespace tinyshard
