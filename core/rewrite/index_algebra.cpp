#include "core/rewrite/index_algebra.h"

#include <numeric>

#include "core/base/hash.h"
#include "core/rewrite/order.h"

namespace tinyshard {
namespace {

constexpr int64_t kFar = Interval::kUnbounded;

int64_t gcd_of_coefficients(const Linear& x) {
  uint64_t g = 0;
  for (const Term& t : x.terms) {
    g = std::gcd(g, magnitude(t.coefficient));
    if (g == 1) break;
  }
  return static_cast<int64_t>(g);
}

}  // namespace

// --- atoms and forms
// -------------------------------------------------------------------------------

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
      divisor = node.src(1).arg(0);
    }
    atoms_.push_back({node, interval.low, interval.high, kind, divisor});
    atom_of_[node] = id;
  }
  Linear x;
  // A Range of size 0 has no value at all; its loop must stay.
  bool no_value = node.op() == Op::Range && node.arg(1) <= 0;
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
      x.constant = checked_add(x.constant, checked_mul(scale, part->arg(0)));
    } else if (part->op() == Op::Add) {
      parts.push_back({&part->src(0), scale});
      parts.push_back({&part->src(1), scale});
    } else if (part->op() == Op::Mul && is_const(part->src(1))) {
      parts.push_back({&part->src(0), checked_mul(scale, part->src(1).arg(0))});
    } else {
      x = add(x, this->atom(*part), scale);
    }
  }
  Form form = keep(std::move(x));
  remember(node, form);
  return form;
}

// --- sums
// ------------------------------------------------------------------------------------------

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

// --- bounds
// ----------------------------------------------------------------------------------------

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

// --- division
// --------------------------------------------------------------------------------------

IndexAlgebra::Divided IndexAlgebra::divided(Form x, int64_t divisor, Wanted wanted) {
  auto slot = [this](Form form, int64_t by) -> Divided& {
    size_t mask = divided_.size() - 1;
    for (size_t i = combine(form, static_cast<uint64_t>(by));; ++i) {
      Divided& entry = divided_[i & mask];
      if (entry.form == kNoForm || (entry.form == form && entry.divisor == by)) return entry;
    }
  };
  if (divided_size_ * 2 >= divided_.size()) {
    std::vector<Divided> old(std::max<size_t>(32, divided_.size() * 2));
    old.swap(divided_);
    for (const Divided& entry : old) {
      if (entry.form != kNoForm) slot(entry.form, entry.divisor) = entry;
    }
  }
  Divided entry = slot(x, divisor);
  Form& half = wanted == kQuotient ? entry.quotient : entry.remainder;
  if (half != kNoForm) return entry;
  Division d = divide(linear(x), divisor, wanted);  // may come back here and move the slots
  half = keep(std::move(wanted == kQuotient ? d.quotient : d.remainder));
  Divided& kept = slot(x, divisor);
  divided_size_ += kept.form == kNoForm;
  (wanted == kQuotient ? kept.quotient : kept.remainder) = half;
  kept.form = entry.form = x;
  kept.divisor = entry.divisor = divisor;
  return entry;
}

IndexAlgebra::Division IndexAlgebra::divide(const Linear& x, int64_t divisor, Wanted wanted) {
  if (divisor == 1) return {x, Linear()};
  if (auto m = window(x, divisor))
    return {Linear(*m), add(x, Linear(checked_mul(*m, divisor)), -1)};

  // x = divisor * quotient + r, with what r keeps of each coefficient smaller than the divisor.
  Linear quotient(floor_div(x.constant, divisor));
  Linear r(floor_mod(x.constant, divisor));
  for (const Term& t : x.terms) {
    int64_t whole = t.coefficient / divisor, part = t.coefficient % divisor;
    if (whole != 0) quotient.terms.push_back({whole, t.atom});
    if (part != 0) r.terms.push_back({part, t.atom});
  }
  sort(quotient);
  sort(r);
  if (r.is_constant()) return {quotient, r};
  if (auto m = window(r, divisor)) {
    quotient.constant = checked_add(quotient.constant, *m);
    return {quotient, add(r, Linear(checked_mul(*m, divisor)), -1)};
  }

  // The same with each coefficient as near to zero as it can be: 3 * a % 4 is -a % 4.
  Linear near(r.constant);
  Linear near_quotient = quotient;
  bool nearer = false;
  for (const Term& t : r.terms) {
    int64_t c = t.coefficient;
    if (magnitude(c) > static_cast<uint64_t>(divisor) / 2) {
      nearer = true;
      int64_t sign = c < 0 ? -1 : 1;
      c -= sign * divisor;
      auto same = std::ranges::find(near_quotient.terms, t.atom, &Term::atom);
      if (same == near_quotient.terms.end()) {
        near_quotient.terms.push_back({sign, t.atom});
      } else {
        same->coefficient = checked_add(same->coefficient, sign);
        if (same->coefficient == 0) near_quotient.terms.erase(same);
      }
    }
    near.terms.push_back({c, t.atom});
  }
  if (auto m = nearer ? window(near, divisor) : std::nullopt) {
    sort(near);
    sort(near_quotient);
    near_quotient.constant = checked_add(near_quotient.constant, *m);
    return {near_quotient, add(near, Linear(checked_mul(*m, divisor)), -1)};
  }

  Division rest = divide_reduced(r, divisor, wanted);
  return {add(quotient, rest.quotient), std::move(rest.remainder)};
}

// Coefficients smaller than the divisor, constant in [0, divisor), more than one quotient possible.
IndexAlgebra::Division IndexAlgebra::divide_reduced(const Linear& r, int64_t divisor,
                                                    Wanted wanted) {
  if (!positive_lead(r)) {
    // (k - y) / c = -((y + c-1-k) / c)  and  (k - y) % c = c-1 - (y + c-1-k) % c
    Division d = divide_reduced(add(Linear(divisor - 1), r, -1), divisor, wanted);
    return {scaled(d.quotient, -1), add(Linear(divisor - 1), d.remainder, -1)};
  }

  int64_t g = std::gcd(gcd_of_coefficients(r), divisor);
  if (g > 1) {
    // (g*y + k) / (g*c) = (y + k/g) / c  and  (g*y + k) % (g*c) = g * ((y + k/g) % c) + k % g
    Linear y(r.constant / g);
    for (const Term& t : r.terms) y.terms.push_back({t.coefficient / g, t.atom});
    Division d = divide(y, divisor / g, wanted);
    return {std::move(d.quotient), add(Linear(r.constant % g), d.remainder, g)};
  }
  if (auto parts = divide_by_parts(r, divisor, wanted)) return std::move(*parts);

  Division d;
  if (wanted == kQuotient) {
    auto nested = nested_quotient(r, divisor);
    d.quotient = nested ? std::move(*nested) : division_atom(Op::IDiv, r, divisor);
    return d;
  }
  const Term& lead = r.terms[0];
  if (r.terms.size() == 1 && lead.coefficient == 1 && atoms_[lead.atom].kind == Kind::Mod &&
      atoms_[lead.atom].divisor % divisor == 0) {
    // (y % (a*c) + k) % c = (y + k) % c
    Linear y = add(linear(dividend(lead.atom)), Linear(r.constant));
    d.remainder = remainder(y, divisor);
  } else {
    d.remainder = division_atom(Op::Mod, r, divisor);
  }
  return d;
}

// r = g*y + low digits, where g divides the divisor and the low digits stay within one multiple of
// g: (4*a + 2*b + c) / 8 with 2*b + c < 4 is a / 2.
std::optional<IndexAlgebra::Division> IndexAlgebra::divide_by_parts(const Linear& r,
                                                                    int64_t divisor,
                                                                    Wanted wanted) {
  if (r.terms.size() < 2) return std::nullopt;
  int64_t last = divisor;
  for (;;) {
    // The next smaller factor: larger ones leave less behind.
    int64_t g = 1;
    for (const Term& t : r.terms) {
      int64_t common =
          static_cast<int64_t>(std::gcd(magnitude(t.coefficient), static_cast<uint64_t>(divisor)));
      if (common < last) g = std::max(g, common);
    }
    if (g == 1) return std::nullopt;
    last = g;
    Linear y, low(r.constant);
    for (const Term& t : r.terms) {
      if (t.coefficient % g == 0) {
        y.terms.push_back({t.coefficient / g, t.atom});
      } else {
        low.terms.push_back(t);
      }
    }
    auto m = window(low, g);
    if (!m) continue;
    y.constant = *m;
    low.constant -= *m * g;
    Division d = divide(y, divisor / g, wanted);
    return Division{std::move(d.quotient), add(low, d.remainder, g)};
  }
}

std::optional<Linear> IndexAlgebra::nested_quotient(const Linear& r, int64_t divisor) {
  if (r.terms.size() == 1 && r.terms[0].coefficient == 1 && r.constant == 0) {
    uint32_t atom = r.terms[0].atom;
    int64_t inner = atoms_[atom].divisor;
    if (atoms_[atom].kind == Kind::Mod && inner % divisor == 0) {
      // (y % (a*b)) / a = (y / a) % b
      return remainder(linear(quotient(dividend(atom), divisor)), inner / divisor);
    }
  }
  // (w + y / a) / c = (w*a + y) / (a*c), where that leaves one division less.
  const Term* division = nullptr;
  for (const Term& t : r.terms) {
    if (!is_division(t)) continue;
    if (division || t.coefficient != 1 || atoms_[t.atom].kind != Kind::Div) return std::nullopt;
    division = &t;
  }
  if (!division) return std::nullopt;
  int64_t inner = atoms_[division->atom].divisor, product;
  if (__builtin_mul_overflow(inner, divisor, &product)) return std::nullopt;
  Linear w = r;
  w.terms.erase(w.terms.begin() + (division - r.terms.begin()));
  Linear y = add(linear(dividend(division->atom)), w, inner);
  recombine(y);
  return quotient(y, product);
}

Linear IndexAlgebra::division_atom(Op op, const Linear& r, int64_t divisor) {
  Interval bounds{0, divisor - 1};
  if (op == Op::IDiv) {
    Interval i = interval(r);
    bounds = {i.low <= -kFar ? -kFar : floor_div(i.low, divisor),
              i.high >= kFar ? kFar : floor_div(i.high, divisor)};
  }
  return atom(UOp::make(op, DType::Index, {node(r), index_const(divisor)}), bounds);
}

// --- putting quotients and remainders together
// -------------------------------------------------------

// Every division in `part`, times scale, is a term of x.
bool IndexAlgebra::contains_divisions_of(const Linear& x, const Linear& part, int64_t scale) const {
  bool any = false;
  for (const Term& t : part.terms) {
    if (!is_division(t)) continue;
    if (__int128(t.coefficient) * scale != x.coefficient(t.atom)) return false;
    any = true;
  }
  return any;
}

void IndexAlgebra::recombine(Linear& x) {
  while (recombine_once(x)) {
  }
}

bool IndexAlgebra::recombine_once(Linear& x) {
  int divisions = 0, remainders = 0;
  for (const Term& t : x.terms) {
    divisions += is_division(t);
    remainders += atoms_[t.atom].kind == Kind::Mod;
  }
  if (divisions < 2 || remainders == 0) return false;

  for (size_t i = 0; i < x.terms.size(); ++i) {
    const Term t = x.terms[i];
    if (!is_division(t)) continue;
    int64_t m = atoms_[t.atom].divisor;
    if (atoms_[t.atom].kind == Kind::Div) {
      // t = k*m * (z / m): is k * (z % m) here too?
      if (t.coefficient % m != 0) continue;
      int64_t k = t.coefficient / m;
      Form z = dividend(t.atom);
      const Linear& low = linear(remainder(z, m));
      if (!contains_divisions_of(x, low, k)) continue;
      Linear without = x;
      without.terms.erase(without.terms.begin() + i);
      x = add(add(without, low, -k), linear(z), k);
      return true;
    }
    // t = k * (z % m): is k*m * (z / m) here too, or the next digit k*m * ((w + z / m) % n)?
    int64_t k = t.coefficient, next;
    if (__builtin_mul_overflow(k, m, &next)) continue;
    bool candidate = false;
    for (const Term& u : x.terms) {
      candidate = candidate || (is_division(u) && magnitude(u.coefficient) == magnitude(next));
    }
    if (!candidate) continue;
    const Linear& z = linear(dividend(t.atom));
    const Linear& high = linear(quotient(dividend(t.atom), m));
    Linear without = x;
    without.terms.erase(without.terms.begin() + i);
    if (contains_divisions_of(x, high, next)) {
      x = add(add(without, high, -next), z, k);
      return true;
    }
    for (size_t j = 0; j < without.terms.size(); ++j) {
      const Term u = without.terms[j];
      if (u.coefficient != next || atoms_[u.atom].kind != Kind::Mod) continue;
      int64_t n = atoms_[u.atom].divisor, product;
      const Linear& digit = linear(dividend(u.atom));
      if (__builtin_mul_overflow(m, n, &product)) continue;
      if (!contains_divisions_of(digit, high, 1)) continue;
      Linear w = add(digit, high, -1);
      without.terms.erase(without.terms.begin() + j);
      x = add(without, remainder(add(z, w, m), product), k);
      return true;
    }
  }
  return false;
}

}  // namespace tinyshard
