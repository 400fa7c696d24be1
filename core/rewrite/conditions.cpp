// Comparisons are brought into one form, so that equal conditions are equal nodes and bounds of one sum
// can be joined. With 0 <= b < 4:
//
//   4 a + b < 8                              a < 2: b cannot decide it
//   3 < x and x < 5                          x == 4
//   i < 8 and j < 5 and i + j < 20           i < 8 and j < 5: the third follows, for i and j from 0 on
//   i < 3 and 5 < i                          false
//   (c and x) or c                           c
#include "core/rewrite/conditions.h"

#include <algorithm>
#include <numeric>

#include "core/rewrite/compare_structure.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

UOp truth(bool value) { return const_int(DType::Bool, value); }
bool is_true(const UOp& x) { return is_const(x) && const_bits(*x) != 0; }
bool is_false(const UOp& x) { return is_const(x) && const_bits(*x) == 0; }

UOp compare(Op op, const UOp& a, const UOp& b) { return UOp::make(op, DType::Bool, {a, b}); }

int64_t common_factor(const Linear& x) {
  uint64_t g = 0;
  for (const Term& t : x.terms) g = std::gcd(g, magnitude(t.coefficient));
  return static_cast<int64_t>(g);
}

// sum < limit, for a sum without constant whose leading coefficient is positive.
struct Upper {
  Linear sum;
  int64_t limit;
  int truth = -1;  // 0 or 1 when the comparison is decided
};

// Drops low digits that cannot matter (4*a + b < 8 is a < 2 when 0 <= b < 4), common factors and
// divisions (y / 4 < 2 is y < 8).
Upper reduce_upper(IndexAlgebra& algebra, Upper x) {
  for (bool changed = true; changed;) {
    changed = false;
    Interval bounds = algebra.interval(x.sum);
    if (bounds.high < kFar && bounds.high < x.limit) return {{}, 0, 1};
    if (bounds.low > -kFar && bounds.low >= x.limit) return {{}, 0, 0};
    if (x.sum.is_constant()) return {{}, 0, x.sum.constant < x.limit};
    if (int64_t g = common_factor(x.sum); g > 1) {
      for (Term& t : x.sum.terms) t.coefficient /= g;
      x.limit = ceil_div(x.limit, g);
      changed = true;
    }
    for (const Term& t : x.sum.terms) {
      const UOp& node = algebra.atom_node(t.atom);
      if (node.op() != Op::IDiv || t.coefficient != 1 || !is_const(node.src(1))) continue;
      // w + y / c < limit  is  w*c + y < limit*c
      auto form = algebra.find(node.src(0));
      if (!form) continue;
      int64_t c = const_bits(*node.src(1)), limit;
      if (__builtin_mul_overflow(x.limit, c, &limit)) break;
      Linear w = x.sum;
      w.terms.erase(std::ranges::find(w.terms, t.atom, &Term::atom));
      Linear y = algebra.add(algebra.linear(*form), w, c);
      algebra.recombine(y);
      if (!algebra.positive_lead(y)) continue;
      x.limit = checked_add(limit, -y.constant);
      y.constant = 0;
      x.sum = std::move(y);
      changed = true;
      break;
    }
    if (changed) continue;
    std::vector<uint64_t> factors;
    for (const Term& t : x.sum.terms) {
      if (magnitude(t.coefficient) > 1) factors.push_back(magnitude(t.coefficient));
    }
    std::ranges::sort(factors, std::greater());
    for (uint64_t factor : factors) {
      int64_t h = static_cast<int64_t>(factor);
      Linear high, low;
      for (const Term& t : x.sum.terms) {
        if (t.coefficient % h == 0) {
          high.terms.push_back({t.coefficient / h, t.atom});
        } else {
          low.terms.push_back(t);
        }
      }
      if (low.is_constant() || high.is_constant()) continue;
      Interval i = algebra.interval(low);
      if (i.low <= -kFar || i.high >= kFar) continue;
      int64_t m = floor_div(i.low, h);
      if (m != floor_div(i.high, h)) continue;
      // h*high + low < limit with low in [m*h, (m+1)*h)
      int64_t limit = checked_add(x.limit, -checked_mul(m, h));
      int64_t whole = floor_div(limit, h), part = floor_mod(limit, h);
      if (i.high - m * h < part) {
        x = {high, whole + 1};
      } else if (i.low - m * h >= part) {
        x = {high, whole};
      } else {
        continue;
      }
      changed = true;
      break;
    }
  }
  return x;
}

UOp make_bound(IndexAlgebra& algebra, const Linear& sum, bool upper, int64_t limit) {
  UOp node = algebra.node(sum);
  return upper ? compare(Op::CmpLt, node, index_const(limit))
               : compare(Op::CmpLt, index_const(limit), node);
}

}  // namespace

UOp less_than_zero(IndexAlgebra& algebra, const Linear& x) {
  if (x.is_constant()) return truth(x.constant < 0);
  Linear sum = x;
  sum.constant = 0;
  if (algebra.positive_lead(x)) {
    Upper u = reduce_upper(algebra, {sum, checked_mul(x.constant, -1)});
    return u.truth >= 0 ? truth(u.truth) : make_bound(algebra, u.sum, true, u.limit);
  }
  // -y + k < 0  is  not (y < k + 1)
  Upper u = reduce_upper(algebra, {algebra.scaled(sum, -1), checked_add(x.constant, 1)});
  return u.truth >= 0 ? truth(!u.truth) : make_bound(algebra, u.sum, false, u.limit - 1);
}

UOp equal_to_zero(IndexAlgebra& algebra, const Linear& x, bool negate) {
  Interval bounds = algebra.interval(x);
  if (bounds.low > 0 || bounds.high < 0) return truth(negate);
  if (x.is_constant()) return truth((x.constant == 0) != negate);
  int64_t g = common_factor(x);
  if (x.constant % g != 0) return truth(negate);
  int64_t scale = algebra.positive_lead(x) ? 1 : -1;
  Linear sum;
  for (const Term& t : x.terms) sum.terms.push_back({scale * (t.coefficient / g), t.atom});
  int64_t value = -scale * (x.constant / g);
  return compare(negate ? Op::CmpNe : Op::CmpEq, algebra.node(sum), index_const(value));
}

UOp negated(IndexAlgebra& algebra, const UOp& x) {
  if (is_const(x)) return truth(!const_bits(*x));
  switch (x.op()) {
    case Op::Not:
      return x.src(0);
    case Op::CmpEq:
      return compare(Op::CmpNe, x.src(0), x.src(1));
    case Op::CmpNe:
      return compare(Op::CmpEq, x.src(0), x.src(1));
    case Op::CmpLt: {
      if (auto bound = as_bound(x)) {
        auto form = algebra.find(bound->sum);
        if (!form) break;
        return bound->interval.low <= -kFar
                   ? make_bound(algebra, algebra.linear(*form), false, bound->interval.high)
                   : make_bound(algebra, algebra.linear(*form), true, bound->interval.low);
      }
      break;
    }
    default:
      break;
  }
  return unary(Op::Not, x);
}

std::vector<UOp> conjuncts(const UOp& condition) {
  std::vector<UOp> list, stack{condition};
  while (!stack.empty()) {
    UOp x = std::move(stack.back());
    stack.pop_back();
    if (x.op() == Op::And && x.dtype() == DType::Bool) {
      stack.push_back(x.src(1));
      stack.push_back(x.src(0));
    } else {
      list.push_back(std::move(x));
    }
  }
  return list;
}

std::optional<Bound> as_bound(const UOp& x) {
  if (x.op() != Op::CmpLt && x.op() != Op::CmpEq) return std::nullopt;
  const UOp &a = x.src(0), &b = x.src(1);
  if (a.dtype() != DType::Index) return std::nullopt;
  if (is_const(b)) {
    int64_t k = const_bits(*b);
    if (x.op() == Op::CmpEq) return Bound{a, {k, k}};
    return Bound{a, {-kFar, k - 1}};
  }
  if (is_const(a) && x.op() == Op::CmpLt) return Bound{b, {const_bits(*a) + 1, kFar}};
  return std::nullopt;
}

UOp conjunction(IndexAlgebra& algebra, const UOp& a, const UOp& b) {
  if (is_true(a) || a == b || is_false(b)) return b;
  if (is_true(b) || is_false(a)) return a;

  struct Range {
    Linear sum;
    UOp node;
    Interval interval, natural;
  };
  std::vector<Range> ranges;
  std::vector<UOp> others;
  std::vector<UOp> all = conjuncts(a);
  for (UOp& x : conjuncts(b)) all.push_back(std::move(x));
  for (const UOp& x : all) {
    auto bound = as_bound(x);
    const auto* form = bound ? algebra.find(bound->sum) : nullptr;
    if (!form) {
      others.push_back(x);
      continue;
    }
    auto same = std::ranges::find(ranges, bound->sum, &Range::node);
    if (same == ranges.end()) {
      const Linear& sum = algebra.linear(*form);
      ranges.push_back({sum, bound->sum, bound->interval, algebra.interval(sum)});
      continue;
    }
    same->interval = intersection(same->interval, bound->interval);
  }

  // Bounds of single atoms say something about the sums that contain them.
  for (Range& range : ranges) {
    if (range.sum.terms.size() < 2) continue;
    Interval implied{range.sum.constant, range.sum.constant};
    for (const Term& t : range.sum.terms) {
      Interval i = algebra.atom_interval(t.atom);
      for (const Range& other : ranges) {
        if (other.sum.terms.size() != 1 || other.sum.terms[0] != Term{1, t.atom}) continue;
        i = intersection(i, other.interval);
      }
      implied = implied + i * t.coefficient;
    }
    range.natural = intersection(range.natural, implied);
  }

  std::vector<UOp> kept;
  for (const Range& range : ranges) {
    Interval i = range.interval;
    if (i.low > range.natural.high || i.high < range.natural.low || i.empty()) return truth(false);
    bool lower = i.low > range.natural.low, upper = i.high < range.natural.high;
    if (i.low == i.high && (lower || upper)) {
      kept.push_back(compare(Op::CmpEq, range.node, index_const(i.low)));
      continue;
    }
    if (lower) kept.push_back(compare(Op::CmpLt, index_const(i.low - 1), range.node));
    if (upper) kept.push_back(compare(Op::CmpLt, range.node, index_const(i.high + 1)));
  }
  for (const UOp& x : others) {
    if (std::ranges::find(kept, x) != kept.end()) continue;
    if (std::ranges::find(others, negated(algebra, x)) != others.end()) return truth(false);
    kept.push_back(x);
  }
  if (kept.empty()) return truth(true);
  std::ranges::sort(kept, [](const UOp& x, const UOp& y) { return compare_structure(x, y) < 0; });
  UOp result = kept[0];
  for (size_t i = 1; i < kept.size(); ++i)
    result = UOp::make(Op::And, DType::Bool, {result, kept[i]});
  return result;
}

UOp disjunction(IndexAlgebra& algebra, const UOp& a, const UOp& b) {
  if (is_false(a) || a == b || is_true(b)) return b;
  if (is_false(b) || is_true(a)) return a;
  if (negated(algebra, a) == b) return truth(true);
  // A side whose demands the other one makes as well is the result: (c & x) | c is c.
  std::vector<UOp> of_a = conjuncts(a), of_b = conjuncts(b);
  auto within = [](const std::vector<UOp>& part, const std::vector<UOp>& whole) {
    return std::ranges::all_of(
        part, [&](const UOp& x) { return std::ranges::find(whole, x) != whole.end(); });
  };
  if (within(of_a, of_b)) return a;
  if (within(of_b, of_a)) return b;
  return compare_structure(a, b) < 0 ? UOp::make(Op::Or, DType::Bool, {a, b})
                                     : UOp::make(Op::Or, DType::Bool, {b, a});
}

}  // namespace tinyshard
