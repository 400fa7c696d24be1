// Index values as linear forms over atoms (ranges, divisions, loads...): sums, floor division and
// remainder, bounds under known facts. Internal to core/rewrite; one Simplifier owns one algebra.
//
// Every IDiv or Mod atom has a dividend in which all coefficients are smaller than the divisor, the
// leading one is positive, the constant is in [0, divisor), and no factor is common to all. Equal
// divisions are therefore found as equal nodes.
#pragma once
#include <optional>
#include <vector>

#include "core/rewrite/linear.h"
#include "core/uop/node_map.h"
#include "core/uop/uop.h"

namespace tinyshard {

// Both ends inclusive. An end at or beyond +-kUnbounded is not known.
struct Interval {
  static constexpr int64_t kUnbounded = int64_t{1} << 62;
  int64_t low = -kUnbounded, high = kUnbounded;
  bool is_constant() const { return low == high && low > -kUnbounded && high < kUnbounded; }
  bool empty() const { return low > high; }
};
inline constexpr int64_t kFar = Interval::kUnbounded;
inline Interval operator+(Interval a, Interval b) {
  auto plus = [](int64_t x, int64_t y, int64_t unknown) {
    if (x <= -kFar || y <= -kFar || x >= kFar || y >= kFar) return unknown;
    int64_t r = x + y;  // each is smaller than 2^62
    return r <= -kFar ? -kFar : r >= kFar ? kFar : r;
  };
  return {plus(a.low, b.low, -kFar), plus(a.high, b.high, kFar)};
}
inline Interval operator*(Interval i, int64_t scale) {
  if (scale == 0) return {0, 0};
  auto times = [scale](int64_t end) {
    int64_t r;
    bool far = end <= -kFar || end >= kFar || __builtin_mul_overflow(end, scale, &r);
    if (far || r <= -kFar || r >= kFar) return (end < 0) == (scale < 0) ? kFar : -kFar;
    return r;
  };
  return scale > 0 ? Interval{times(i.low), times(i.high)} : Interval{times(i.high), times(i.low)};
}
inline Interval intersection(Interval a, Interval b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high)};
}

class IndexAlgebra {
 public:
  IndexAlgebra() { atoms_.reserve(16); }

  // A Linear kept by the algebra, with its node once somebody asked for it.
  using Form = uint32_t;
  const Linear& linear(Form form) const { return forms_[form].linear; }
  Form keep(Linear&& linear);
  Form keep(const Linear& linear) { return keep(Linear(linear)); }
  UOp node(Form form);
  UOp node(const Linear& linear) { return node(keep(linear)); }
  // The form of a node whose simplification is known; null when it was never seen. The pointer dies
  // with the next form.
  const Form* find(const UOp& node) const { return form_of_.find(node); }
  void remember(const UOp& node, Form form) { form_of_[node] = form; }
  void forget_forms();

  Linear atom(const UOp& node);                     // any canonical node that is not a sum
  Linear atom(const UOp& node, Interval narrower);  // whose bounds are known better than the node's
  const UOp& atom_node(uint32_t atom) const { return atoms_[atom].node; }
  Interval atom_interval(uint32_t atom) const { return {atoms_[atom].low, atoms_[atom].high}; }

  Linear add(const Linear& a, const Linear& b, int64_t scale = 1);  // a + scale * b
  Linear scaled(const Linear& a, int64_t scale);
  Linear multiply(const Linear& a, const Linear& b);

  // x = divisor * quotient + remainder with 0 <= remainder < divisor; the divisor is positive.
  Linear quotient(const Linear& x, int64_t divisor) {
    return divide(x, divisor, kQuotient).quotient;
  }
  Linear remainder(const Linear& x, int64_t divisor) {
    return divide(x, divisor, kRemainder).remainder;
  }
  // The same, remembered.
  Form quotient(Form x, int64_t divisor) { return divided(x, divisor, kQuotient).quotient; }
  Form remainder(Form x, int64_t divisor) { return divided(x, divisor, kRemainder).remainder; }

  // c*(x/c) + x%c and the like put together again.
  void recombine(Linear& x);

  Interval interval(const Linear& x) const;
  bool positive_lead(const Linear& x) const {
    return x.terms.empty() || x.terms[0].coefficient > 0;
  }
  bool comes_before(const Term& a, const Term& b) const;

  // Adds the fact that the terms of `x`, without its constant, lie in `interval`.
  void add_fact(const Linear& x, Interval interval);
  bool has_facts() const { return !facts_.empty() || has_narrowed_atoms_; }

 private:
  enum class Kind : uint8_t { Other, Div, Mod };
  struct Atom {
    UOp node;
    int64_t low, high;
    Kind kind;  // Div and Mod: by the constant `divisor`
    int64_t divisor;
  };
  struct Fact {
    Linear terms;
    Interval interval;
  };
  struct FormEntry {
    Linear linear;
    UOp node;
  };

  void sort(Linear& x) const;
  Interval plain_interval(const Linear& x) const;
  std::optional<int64_t> window(const Linear& x, int64_t size) const;
  // Only the wanted half of a Division is filled in: each may cost a new node.
  enum Wanted { kQuotient, kRemainder };
  struct Division {
    Linear quotient, remainder;
  };
  Division divide(const Linear& x, int64_t divisor, Wanted wanted);
  Division divide_reduced(const Linear& r, int64_t divisor, Wanted wanted);
  std::optional<Division> divide_by_parts(const Linear& r, int64_t divisor, Wanted wanted);
  std::optional<Linear> nested_quotient(const Linear& r, int64_t divisor);
  Form dividend(uint32_t atom);
  bool is_division(const Term& t) const { return atoms_[t.atom].kind != Kind::Other; }
  bool contains_divisions_of(const Linear& x, const Linear& part, int64_t scale) const;
  bool recombine_once(Linear& x);
  Linear division_atom(Op op, const Linear& r, int64_t divisor);
  UOp build(const Linear& x) const;

  std::vector<Atom> atoms_;
  NodeMap<uint32_t> atom_of_;
  StableVector<FormEntry> forms_;
  NodeMap<Form> form_of_;
  static constexpr Form kNoForm = ~Form{0};
  struct Divided {
    int64_t divisor = 0;
    Form form = kNoForm, quotient = kNoForm, remainder = kNoForm;
  };
  Divided divided(Form x, int64_t divisor, Wanted wanted);
  std::vector<Divided> divided_;  // open addressing by form and divisor
  size_t divided_size_ = 0;
  std::vector<Fact> facts_;
  bool has_narrowed_atoms_ = false;
};

}  // namespace tinyshard
