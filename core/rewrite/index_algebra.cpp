// Linear forms are kept sorted, so that equal sums are found as equal forms. Example, with i in [0, 8):
// 4 * i + 2 + 3 * i is 7 * i + 2, and lies in [2, 51]; the fact i < 3 narrows it to [2, 16].
#include "core/rewrite/index_algebra.h"

#include <numeric>

#include "core/rewrite/compare_structure.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {}  // namespace

// --- atoms and forms -----------------------------------------------------------------------------

Linear IndexAlgebra::atom(const UOp& node) { return atom(node, {node->low, node->high}); }

Linear IndexAlgebra::atom(const UOp& node, Interval interval) {
  uint32_t id;
  if (const uint32_t* known = atom_of_.find(node)) {
    id = *known;
    interval = intersection(interval, atom_interval(id));
    atoms_[id].low = interval.low;
    atoms_[id].high = interval.high;
  } else {
    interval = intersection(interval, {node->low, node->high});
    id = static_cast<uint32_t>(atoms_.size());
    Kind kind = Kind::Other;
    int64_t divisor = 0;
    if ((node.op() == Op::IDiv || node.op() == Op::Mod) && is_const(node.src(1))) {
      kind = node.op() == Op::IDiv ? Kind::Div : Kind::Mod;
      divisor = const_bits(*node.src(1));
    }
    atoms_.push_back({node, interval.low, interval.high, kind, divisor});
    atom_of_[node] = id;
  }
  Linear x;
  // A Range of size 0 has no value at all; its loop must stay.
  bool no_value = node.op() == Op::Range && range_arg(*node).size <= 0;
  if (interval.is_constant() && !no_value) {
    x.constant = interval.low;
  } else {
    x.terms.push_back({1, id});
  }
  return x;
}

IndexAlgebra::Form IndexAlgebra::keep(Linear&& linear) {
  forms_.add().linear = std::move(linear);
  return static_cast<Form>(forms_.size() - 1);
}

void IndexAlgebra::forget_forms() {
  form_of_ = NodeMap<Form>();
  divided_.clear();
  divided_size_ = 0;
}

UOp IndexAlgebra::node(Form form) {
  FormEntry& entry = forms_[form];
  if (!entry.node) {
    entry.node = build(entry.linear);
    if (!form_of_.contains(entry.node)) form_of_[entry.node] = form;
  }
  return entry.node;
}

UOp IndexAlgebra::build(const Linear& x) const {
  UOp result;
  for (const Term& t : x.terms) {
    const UOp& node = atoms_[t.atom].node;
    UOp product = t.coefficient == 1
                      ? node
                      : UOp::make(Op::Mul, DType::Index, {node, index_const(t.coefficient)});
    result = result ? UOp::make(Op::Add, DType::Index, {result, product}) : std::move(product);
  }
  if (!result) return index_const(x.constant);
  if (x.constant == 0) return result;
  return UOp::make(Op::Add, DType::Index, {result, index_const(x.constant)});
}

IndexAlgebra::Form IndexAlgebra::dividend(uint32_t atom) {
  UOp node = atoms_[atom].node.src(0);
  if (auto form = find(node)) return *form;
  // The node's own form was forgotten when facts came in: read it off the node again.
  Linear x;
  std::vector<std::pair<const UOp*, int64_t>> parts{{&node, 1}};
  while (!parts.empty()) {
    auto [part, scale] = parts.back();
    parts.pop_back();
    if (is_const(*part)) {
      x.constant = checked_add(x.constant, checked_mul(scale, const_bits(**part)));
    } else if (part->op() == Op::Add) {
      parts.push_back({&part->src(0), scale});
      parts.push_back({&part->src(1), scale});
    } else if (part->op() == Op::Mul && is_const(part->src(1))) {
      parts.push_back({&part->src(0), checked_mul(scale, const_bits(*part->src(1)))});
    } else {
      x = add(x, this->atom(*part), scale);
    }
  }
  Form form = keep(std::move(x));
  remember(node, form);
  return form;
}

// --- sums ----------------------------------------------------------------------------------------

bool IndexAlgebra::comes_before(const Term& a, const Term& b) const {
  uint64_t m = magnitude(a.coefficient), n = magnitude(b.coefficient);
  if (m != n) return m > n;
  return compare_structure(atoms_[a.atom].node, atoms_[b.atom].node) < 0;
}

void IndexAlgebra::sort(Linear& x) const {
  auto& t = x.terms;
  for (size_t i = 1; i < t.size(); ++i) {
    Term moving = t[i];
    size_t j = i;
    for (; j > 0 && comes_before(moving, t[j - 1]); --j) t[j] = t[j - 1];
    t[j] = moving;
  }
}

Linear IndexAlgebra::add(const Linear& a, const Linear& b, int64_t scale) {
  Linear x = a;
  x.constant = checked_add(x.constant, checked_mul(scale, b.constant));
  if (scale == 0) return x;
  for (const Term& t : b.terms) {
    int64_t coefficient = checked_mul(scale, t.coefficient);
    auto same = std::ranges::find(x.terms, t.atom, &Term::atom);
    if (same == x.terms.end()) {
      x.terms.push_back({coefficient, t.atom});
      continue;
    }
    same->coefficient = checked_add(same->coefficient, coefficient);
    if (same->coefficient == 0) x.terms.erase(same);
  }
  if (!b.terms.empty()) sort(x);
  return x;
}

Linear IndexAlgebra::scaled(const Linear& a, int64_t scale) {
  if (scale == 0) return Linear();
  Linear x = a;
  x.constant = checked_mul(x.constant, scale);
  for (Term& t : x.terms) t.coefficient = checked_mul(t.coefficient, scale);
  return x;
}

Linear IndexAlgebra::multiply(const Linear& a, const Linear& b) {
  if (a.is_constant()) return scaled(b, a.constant);
  if (b.is_constant()) return scaled(a, b.constant);
  // Neither is known: pull out the content of both, which may cancel in a division.
  auto content = [](const Linear& x) {
    uint64_t g = std::gcd(static_cast<uint64_t>(gcd_of_coefficients(x)), magnitude(x.constant));
    return static_cast<int64_t>(x.terms[0].coefficient < 0 ? 0 - g : g);
  };
  auto without = [](Linear x, int64_t g) {
    x.constant /= g;
    for (Term& t : x.terms) t.coefficient /= g;
    return x;
  };
  int64_t g = content(a), h = content(b);
  UOp first = node(without(a, g)), second = node(without(b, h));
  if (compare_structure(second, first) < 0) std::swap(first, second);
  return scaled(atom(UOp::make(Op::Mul, DType::Index, {first, second})), checked_mul(g, h));
}

// --- bounds --------------------------------------------------------------------------------------

Interval IndexAlgebra::plain_interval(const Linear& x) const {
  Interval result{x.constant, x.constant};
  for (const Term& t : x.terms) {
    result = result + atom_interval(t.atom) * t.coefficient;
  }
  return result;
}

Interval IndexAlgebra::interval(const Linear& x) const {
  Interval result = plain_interval(x);
  // x = scale * (terms of the fact) + rest.
  for (const Fact& fact : facts_) {
    const Term& lead = fact.terms.terms[0];
    int64_t in_x = x.coefficient(lead.atom);
    if (in_x == 0 || in_x % lead.coefficient != 0) continue;
    int64_t scale = in_x / lead.coefficient;
    Linear rest = x;
    bool all = true;
    for (const Term& t : fact.terms.terms) {
      auto same = std::ranges::find(rest.terms, t.atom, &Term::atom);
      all = all && same != rest.terms.end() && __int128(scale) * t.coefficient == same->coefficient;
      if (!all) break;
      rest.terms.erase(same);
    }
    if (all) {
      result = intersection(result, plain_interval(rest) + fact.interval * scale);
    }
  }
  return result;
}

void IndexAlgebra::add_fact(const Linear& x, Interval interval) {
  if (x.terms.size() == 1 && x.terms[0].coefficient == 1) {
    Atom& atom = atoms_[x.terms[0].atom];
    Interval narrowed = intersection(interval, atom_interval(x.terms[0].atom));
    atom.low = narrowed.low;
    atom.high = narrowed.high;
    has_narrowed_atoms_ = true;
    return;
  }
  Linear terms = x;
  terms.constant = 0;
  facts_.push_back({std::move(terms), interval});
}

// The m for which all values of x lie in [m * size, (m + 1) * size).
std::optional<int64_t> IndexAlgebra::window(const Linear& x, int64_t size) const {
  Interval i = interval(x);
  if (i.low <= -kFar || i.high >= kFar || i.empty()) return std::nullopt;
  int64_t m = floor_div(i.low, size);
  return m == floor_div(i.high, size) ? std::optional(m) : std::nullopt;
}

}  // namespace tinyshard
