// The checks of what a program writes, before the builders that check nothing but the op's own rules.
#include "core/uop/expressions.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/uop/composite.h"

namespace tinyshard {
namespace {

std::string text(const UOp& x) { return x ? describe(*under_names(x)) : "a null UOp"; }

void need(bool holds, Op op, const UOp& x, const char* what) {
  if (!holds) throw UserError(fmt::format("{}: {} {}", info(op).name, text(x), what));
}

UOp of_one(Op op, const UOp& x) {
  need(bool(x), op, x, "is no node");
  need(!info(op).element.floats_only || is_float(x.dtype()), op, x, "is of no type of floats");
  return unary(op, x);
}

UOp of_two(Op op, const UOp& a, const UOp& b) {
  need(bool(a), op, a, "is no node");
  need(bool(b), op, b, "is no node");
  if (a.dtype() != b.dtype() || !std::ranges::equal(a.shape(), b.shape())) {
    throw UserError(
        fmt::format("{}: {} and {} differ in type or shape", info(op).name, text(a), text(b)));
  }
  need(!info(op).element.floats_only || is_float(a.dtype()), op, a, "is of no type of floats");
  return binary(op, a, b);
}

bool divides_floats(const UOp& x) { return x && is_float(x.dtype()); }

}  // namespace

UOp operator+(const UOp& a, const UOp& b) { return of_two(Op::Add, a, b); }
UOp operator-(const UOp& a, const UOp& b) { return of_two(Op::Sub, a, b); }
UOp operator*(const UOp& a, const UOp& b) { return of_two(Op::Mul, a, b); }
UOp operator/(const UOp& a, const UOp& b) {
  return of_two(divides_floats(a) ? Op::Div : Op::IDiv, a, b);
}
UOp operator%(const UOp& a, const UOp& b) { return of_two(Op::Mod, a, b); }
UOp operator-(const UOp& x) { return of_one(Op::Neg, x); }
UOp maximum(const UOp& a, const UOp& b) { return of_two(Op::Max, a, b); }
UOp minimum(const UOp& a, const UOp& b) { return choose(less(b, a), b, a); }
UOp less(const UOp& a, const UOp& b) { return of_two(Op::CmpLt, a, b); }
UOp equal(const UOp& a, const UOp& b) { return of_two(Op::CmpEq, a, b); }

UOp choose(const UOp& condition, const UOp& a, const UOp& b) {
  need(condition && condition.dtype() == DType::Bool, Op::Where, condition, "is no condition");
  need(bool(a), Op::Where, a, "is no node");
  need(bool(b), Op::Where, b, "is no node");
  if (a.dtype() != b.dtype() || !std::ranges::equal(a.shape(), b.shape()) ||
      !std::ranges::equal(a.shape(), condition.shape())) {
    throw UserError(fmt::format("where: {}, {} and {} differ in type or shape", text(condition),
                                text(a), text(b)));
  }
  return where(condition, a, b);
}

UOp sqrt(const UOp& x) { return of_one(Op::Sqrt, x); }
UOp exp2(const UOp& x) { return of_one(Op::Exp2, x); }
UOp log2(const UOp& x) { return of_one(Op::Log2, x); }
UOp sin(const UOp& x) { return of_one(Op::Sin, x); }
UOp reciprocal(const UOp& x) { return of_one(Op::Recip, x); }

UOp number_like(const UOp& x, double value) {
  need(bool(x), Op::Const, x, "is no node");
  if (is_float(x.dtype())) return const_float(x.dtype(), value, x.shape());
  if (std::trunc(value) != value || std::abs(value) > 9e18)
    throw UserError(fmt::format("{} is no number of the type of {}", value, text(x)));
  return number_like(x, int64_t(value));
}

UOp spelled_out(const UOp& x) { return x && x.op() == Op::Composite ? spelled(x) : UOp(); }

UOp number_like(const UOp& x, int64_t value) {
  need(bool(x), Op::Const, x, "is no node");
  if (x.dtype() == DType::Index) return index_const(value);
  return const_int(x.dtype(), value, x.shape());
}

}  // namespace tinyshard
