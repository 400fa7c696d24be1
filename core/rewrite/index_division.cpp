// Floor division and remainder of Index values, and putting them together again.
#include <numeric>

#include "core/base/hash.h"
#include "core/rewrite/index_algebra.h"

namespace tinyshard {
namespace {}  // namespace

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

// --- putting quotients and remainders together ---------------------------------------------------

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
