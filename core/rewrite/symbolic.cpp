// One walk over the expression, sources first. Index nodes become linear forms (IndexAlgebra) and
// are made into nodes again only where something other than a sum uses them; all other nodes are
// built by constructors that apply the identities, so that no node has to be looked at twice.
#include "core/rewrite/symbolic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/rewrite/conditions.h"
#include "core/rewrite/fold.h"
#include "core/rewrite/index_algebra.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

// --- facts about types
// -----------------------------------------------------------------------------

bool is_integer(DType d) { return is_int(d) || d == DType::Index; }
bool is_signed(DType d) { return is_signed_int(d) || d == DType::Index; }
int bits_of(DType d) { return static_cast<int>(itemsize(d) * 8); }

Interval limits(DType d) {
  if (d == DType::Bool) return {0, 1};
  if (!is_int(d)) return {};
  Interval all;
  if (is_unsigned_int(d)) return {0, bits_of(d) == 64 ? all.high : (int64_t{1} << bits_of(d)) - 1};
  if (bits_of(d) == 64) return all;
  return {-(int64_t{1} << (bits_of(d) - 1)), (int64_t{1} << (bits_of(d) - 1)) - 1};
}

bool fits(Interval i, DType d) {
  Interval all = limits(d);
  return i.low > -Interval::kUnbounded && i.high < Interval::kUnbounded && i.low >= all.low &&
         i.high <= all.high;
}

// Every value of `from` is a value of `to`.
bool holds_all(DType to, DType from) {
  if (from == to || from == DType::Bool) return true;
  if (to == DType::Bool) return false;
  if (is_float(to)) {
    auto digits = [](DType d) {
      switch (d) {
        case DType::F16:
          return 11;
        case DType::BF16:
          return 8;
        case DType::F32:
          return 24;
        default:
          return 53;
      }
    };
    if (!is_float(from)) return bits_of(from) - (is_signed(from) ? 1 : 0) <= digits(to);
    return itemsize(from) < itemsize(to);
  }
  if (is_float(from)) return false;
  if (is_signed(from)) return is_signed(to) && bits_of(to) >= bits_of(from);
  return bits_of(to) > bits_of(from) || (!is_signed(to) && bits_of(to) == bits_of(from));
}

bool is_zero(const UOp& x) { return is_const(x) && x.arg(0) == 0; }  // +0 only
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

class Simplifier::Impl {
 public:
  Impl() = default;
  explicit Impl(const UOp& condition);

  UOp simplify(const UOp& root) {
    roots_.push_back(root);  // the memo is keyed by address
    return visit(root);
  }

 private:
  using Form = IndexAlgebra::Form;

  UOp visit(const UOp& root);
  bool known(const UOp& x) const {
    return x.dtype() == DType::Index ? algebra_.find(x) != nullptr : memo_.contains(x);
  }
  UOp result(const UOp& x) {
    return x.dtype() == DType::Index ? algebra_.node(*algebra_.find(x)) : memo_.at(x);
  }
  const Linear& linear(const UOp& x) const { return algebra_.linear(*algebra_.find(x)); }
  UOp with_results(const UOp& x);

  // Index nodes, from simplified sources.
  Form index_form(const UOp& x);
  Linear index_value(const UOp& x);
  Linear index_division(const UOp& x);
  Linear index_cast(const UOp& x);
  Linear index_where(const UOp& x);
  Linear index_max(const Linear& a, const Linear& b);
  Linear opaque(const UOp& x) { return algebra_.atom(with_results(x)); }

  // All other nodes. The constructors take simplified sources and give simplified nodes.
  UOp value(const UOp& x);
  UOp elementwise(Op op, DType dtype, std::span<const UOp> src);
  UOp elementwise(Op op, DType dtype, std::initializer_list<UOp> src) {
    return elementwise(op, dtype, std::span(src.begin(), src.size()));
  }
  UOp arithmetic(Op op, const UOp& a, const UOp& b);
  UOp float_arithmetic(Op op, const UOp& a, const UOp& b);
  UOp int_arithmetic(Op op, const UOp& a, const UOp& b);
  UOp comparison(Op op, const UOp& a, const UOp& b);
  UOp negation(const UOp& x);
  UOp select(const UOp& condition, const UOp& a, const UOp& b);
  UOp convert(const UOp& x, DType to);
  UOp load(const UOp& x);
  UOp fold(const UOp& x);
  std::optional<Linear> as_index(const UOp& x) const;
  UOp on_index(Op op, const UOp& a, const UOp& b);
  UOp index_given(const UOp& index, const UOp& valid);
  UOp decided(const UOp& x) const;

  IndexAlgebra algebra_;
  NodeMap<UOp> memo_;
  std::vector<UOp> roots_;
  UOp condition_;                                             // what may be assumed; null: nothing
  std::vector<std::pair<UOp, bool>> truths_;                  // its parts, and their opposites
  std::vector<std::pair<UOp, std::unique_ptr<Impl>>> given_;  // by what loads assume
};

// --- the walk
// --------------------------------------------------------------------------------------

UOp Simplifier::Impl::visit(const UOp& root) {
  if (known(root)) return result(root);
  std::vector<std::pair<const UOp*, size_t>> stack;
  stack.reserve(32);
  stack.push_back({&root, 0});
  while (!stack.empty()) {
    auto& [x, next] = stack.back();
    auto src = (*x)->src();
    while (next < src.size() && known(src[next])) ++next;
    if (next < src.size()) {
      stack.push_back({&src[next++], 0});
      continue;
    }
    const UOp& node = *x;
    if (!known(node)) {
      if (node.dtype() == DType::Index) {
        algebra_.remember(node, index_form(node));
      } else {
        UOp simplified = decided(value(node));
        memo_[node] = simplified;
        if (!memo_.contains(simplified)) memo_[simplified] = simplified;
      }
    }
    stack.pop_back();
  }
  return result(root);
}

UOp Simplifier::Impl::with_results(const UOp& x) {
  std::vector<UOp> src;
  src.reserve(x->sources);
  for (const UOp& s : x->src()) src.push_back(result(s));
  return x.with_src(src);
}

Simplifier::Impl::Impl(const UOp& condition) {
  condition_ = simplify(condition);
  auto assume = [&](const UOp& x, bool value) {
    if (!is_const(x)) truths_.push_back({x, value});
  };
  std::vector<UOp> parts = conjuncts(condition_);
  std::vector<std::pair<Linear, Interval>> facts;
  for (const UOp& part : parts) {
    UOp opposite = negation(part);
    if (auto bound = as_bound(part)) {
      if (auto form = algebra_.find(bound->sum)) {
        facts.push_back({algebra_.linear(*form), bound->interval});
      }
    }
    assume(part, true);
    assume(opposite, false);
  }
  for (auto& [sum, interval] : facts) algebra_.add_fact(sum, interval);
  algebra_.forget_forms();
  memo_ = NodeMap<UOp>();
}

// --- Index
// -----------------------------------------------------------------------------------------

IndexAlgebra::Form Simplifier::Impl::index_form(const UOp& x) {
  try {
    bool division = x.op() == Op::IDiv || x.op() == Op::Mod;
    if (division && is_const(x.src(1)) && x.src(1).arg(0) > 0) {
      Form dividend = *algebra_.find(x.src(0));
      int64_t divisor = x.src(1).arg(0);
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
      return Linear(x.arg(0));
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
    return Linear(folded.arg(0));
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
  if (is_const(condition)) return condition.arg(0) ? a : b;
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

// --- other nodes
// -----------------------------------------------------------------------------------

UOp Simplifier::Impl::value(const UOp& x) {
  switch (x.op()) {
    case Op::Load:
      return load(x);
    case Op::Fold:
      return fold(x);
    default:
      break;
  }
  if (x->sources == 0) return x;
  if (!is_elementwise(x.op())) return with_results(x);
  UOp src[3];
  for (size_t i = 0; i < x->sources; ++i) src[i] = result(x.src(i));
  return elementwise(x.op(), x.dtype(), std::span<const UOp>(src, x->sources));
}

UOp Simplifier::Impl::decided(const UOp& x) const {
  for (const auto& [known, truth] : truths_) {
    if (known == x) return const_int(DType::Bool, truth, x.shape());
  }
  return x;
}

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
  if (info(op).commutative && is_const(a) && !is_const(b)) return arithmetic(op, b, a);
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
      bool t = b.arg(0) != 0;
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
    case Op::Add:
      if (constant && c == 0) return a;
      if (b.op() == Op::Neg) return arithmetic(Op::Sub, a, b.src(0));
      if (a.op() == Op::Neg && !constant) return arithmetic(Op::Sub, b, a.src(0));
      break;
    case Op::Sub:
      if (constant && c == 0) return a;
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
    bool zero = is_zero(b), one = b.arg(0) == 1;
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
        if (b.arg(0) == least) return a;
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

// The Index form of an integer that is one: Cast(index) whose value survives the cast, or a
// constant.
std::optional<Linear> Simplifier::Impl::as_index(const UOp& x) const {
  if (x->rank != 0 || !is_int(x.dtype())) return std::nullopt;
  if (is_const(x)) {
    int64_t value = x.arg(0);
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

UOp Simplifier::Impl::comparison(Op op, const UOp& a, const UOp& b) {
  if (info(op).commutative && is_const(a) && !is_const(b)) return comparison(op, b, a);
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
    bool same = (b.arg(0) != 0) == (op == Op::CmpEq);
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
    if (is_const(b) && b.arg(0) == least) return truth(false);
    if (is_const(a) && a.arg(0) == most) return truth(false);
  }
  return UOp::make(op, DType::Bool, {a, b});
}

UOp Simplifier::Impl::negation(const UOp& x) {
  if (x.dtype() == DType::Bool) return negated(algebra_, x);
  return x.op() == Op::Not ? x.src(0) : unary(Op::Not, x);
}

UOp Simplifier::Impl::select(const UOp& condition, const UOp& a, const UOp& b) {
  if (is_const(condition)) return condition.arg(0) ? a : b;
  if (a == b) return a;
  if (condition.op() == Op::Not) return select(condition.src(0), b, a);
  if (a.op() == Op::Where && a.src(0) == condition) return select(condition, a.src(1), b);
  if (b.op() == Op::Where && b.src(0) == condition) return select(condition, a, b.src(2));
  // Both masks of a mask within a mask.
  if (a.op() == Op::Where && a.src(2) == b) {
    return select(arithmetic(Op::And, condition, a.src(0)), a.src(1), b);
  }
  if (a.dtype() == DType::Bool) {
    if (is_const(a) && is_const(b)) return a.arg(0) ? condition : decided(negation(condition));
    if (is_const(b)) {
      return b.arg(0) ? arithmetic(Op::Or, decided(negation(condition)), a)
                      : arithmetic(Op::And, condition, a);
    }
    if (is_const(a)) {
      return a.arg(0) ? arithmetic(Op::Or, condition, b)
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

UOp Simplifier::Impl::load(const UOp& x) {
  UOp param = result(x.src(0)), index = result(x.src(1));
  if (x->sources < 3) return x.with_src(std::initializer_list<UOp>{param, index});
  UOp valid = result(x.src(2));
  if (is_const(valid)) {
    if (!valid.arg(0)) return const_int(x.dtype(), 0);
    return UOp::make(Op::Load, x.dtype(), {param, index}, x->arg());
  }
  index = index_given(index, valid);
  return UOp::make(Op::Load, x.dtype(), {param, index, valid}, x->arg());
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

UOp Simplifier::Impl::fold(const UOp& x) {
  std::vector<UOp> src{result(x.src(0))};
  for (const UOp& range : x->src().subspan(1)) {
    if (range.arg(1) != 1) src.push_back(range);  // its own variable, not a value to replace
  }
  if (src.size() == 1) return src[0];
  return x.with_src(src);
}

// --- interface
// -------------------------------------------------------------------------------------

Simplifier::Simplifier() : impl_(std::make_unique<Impl>()) {}
Simplifier::Simplifier(const UOp& condition) : impl_(std::make_unique<Impl>(condition)) {}
Simplifier::~Simplifier() = default;
Simplifier::Simplifier(Simplifier&&) noexcept = default;
Simplifier& Simplifier::operator=(Simplifier&&) noexcept = default;

UOp Simplifier::operator()(const UOp& expression) { return impl_->simplify(expression); }

std::vector<UOp> Simplifier::operator()(std::span<const UOp> roots) {
  std::vector<UOp> results;
  results.reserve(roots.size());
  for (const UOp& root : roots) results.push_back(impl_->simplify(root));
  return results;
}

UOp simplify(const UOp& expression) { return Simplifier()(expression); }
std::vector<UOp> simplify(std::span<const UOp> roots) { return Simplifier()(roots); }
UOp simplify_given(const UOp& expression, const UOp& condition) {
  return Simplifier(condition)(expression);
}

}  // namespace tinyshard
