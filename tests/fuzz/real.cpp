// Bounds of error of single operations.
#include "tests/fuzz/real.h"

namespace fuzz {

Math::Math(Type type) {
  bool wide = type == Type::F64;
  eps_ = Unrounded::on() ? 0 : std::ldexp(1, wide ? -52 : -24);
  tiny_ = Unrounded::on() ? 0 : wide ? std::ldexp(1, -1022) : std::ldexp(1, -126);
  if (is_half(type) && RoundedParts::on()) part_ = std::ldexp(1, type == Type::F16 ? -9 : -6);
  huge_ = wide || Unrounded::on() ? std::numeric_limits<double>::max() : std::ldexp(1, 128);
}

double Math::spread(double v, std::initializer_list<double> others) {
  double e = 0;
  for (double other : others) {
    if (std::isnan(v) && std::isnan(other)) continue;
    if (v == other) continue;
    if (!std::isfinite(v) || !std::isfinite(other)) return kUnknown;
    e = std::max(e, 1.5 * std::abs(v - other));
  }
  return e;
}

Real Math::make(double v, double e, double units, double absolute) const {
  if (e == kUnknown || std::isnan(e)) return kAnything;
  if (!std::isfinite(v)) return {v, 0};
  e += eps_ * (units * std::abs(v) + absolute);
  if (units + absolute > 0) e += tiny_;
  if (std::abs(v) + e >= huge_) {
    if (std::abs(v) - e < huge_) return kAnything;
    return {std::copysign(INFINITY, v), 0};
  }
  return {v, e};
}

Real Math::add(Real x, Real y) const {
  return apply([](double a, double b) { return a + b; }, x, y, 1);
}
Real Math::sub(Real x, Real y) const {
  return apply([](double a, double b) { return a - b; }, x, y, 1);
}
Real Math::mul(Real x, Real y) const {
  return apply([](double a, double b) { return a * b; }, x, y, 1);
}
Real Math::div(Real x, Real y) const {
  if (y.known() && y.e > 0 && std::abs(y.v) <= y.e) return kAnything;
  return apply([](double a, double b) { return a / b; }, x, y, 2);
}
Real Math::exp(Real x) const {
  return apply([](double a) { return std::exp(a); }, x, 8 + 2 * std::abs(x.v));
}
Real Math::log(Real x) const {
  if (x.known() && x.e > 0 && std::abs(x.v) <= x.e) return kAnything;
  return apply([](double a) { return std::log(a); }, x, 8, 1);
}
Real Math::sqrt(Real x) const {
  // At zero the slope is infinite, but the root of the error bounds it.
  if (x.known() && x.e > 0 && x.v >= 0 && x.v <= x.e) {
    return make(std::sqrt(x.v), std::sqrt(x.v + x.e), 1);
  }
  return apply([](double a) { return std::sqrt(a); }, x, 1);
}
Real Math::maximum(Real x, Real y) const {
  auto larger = [](double a, double b) { return std::isnan(a) || a > b ? a : b; };
  return apply(larger, x, y, 0);
}

Real Math::sum(const std::vector<Real>& terms) const {
  double v = terms.size() == 1 ? -0.0 : 0.0;  // a sum of one is that one, -0 as well
  double e = 0, magnitude = 0;
  bool up = false, down = false;
  for (const Real& x : terms) {
    if (!x.known()) return kAnything;
    v += x.v, e += x.e;
    if (std::isfinite(x.v)) magnitude += std::abs(x.v);
    up = up || x.v == INFINITY, down = down || x.v == -INFINITY;
  }
  if (!std::isfinite(v) && std::isnan(v)) return {v, 0};
  if (up || down) return {v, 0};
  if (magnitude >= huge_) return kAnything;
  return make(v, e + (eps_ * double(terms.size()) + part_) * magnitude, 1);
}

Real Math::product(const std::vector<Real>& factors) const {
  double v = 1, above = 1, largest = 1, smallest = 1;
  bool zero = false;
  for (const Real& x : factors) {
    if (!x.known()) return kAnything;
    v *= x.v, above *= std::abs(x.v) + x.e;
    largest *= std::max(1.0, std::abs(x.v)), smallest *= std::min(1.0, std::abs(x.v));
    zero = zero || x.v == 0;
  }
  if (std::isnan(v)) return {v, 0};
  if (!std::isfinite(v)) return largest == INFINITY ? Real{v, 0} : kAnything;
  if (largest >= huge_ || (!zero && smallest <= tiny_)) return kAnything;
  return make(v, above - std::abs(v) + 2 * part_ * std::abs(v), 2 * double(factors.size()));
}

Real Math::dot(const std::vector<Real>& a, const std::vector<Real>& b) const {
  std::vector<Real> terms(a.size());
  // A weight of an attention may round to 0, and infinity times 0 is no number.
  auto may_vanish = [](Real x) { return x.e > 0 && std::abs(x.v) <= x.e; };
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].known() || !b[i].known()) return kAnything;
    if ((std::isinf(a[i].v) && may_vanish(b[i])) || (std::isinf(b[i].v) && may_vanish(a[i])))
      return kAnything;
    terms[i] = {a[i].v * b[i].v,
                std::abs(a[i].v) * b[i].e + std::abs(b[i].v) * a[i].e + a[i].e * b[i].e};
    if (std::isnan(terms[i].e)) terms[i].e = 0;  // infinity times an exact zero
    terms[i].e += eps_ * std::abs(terms[i].v);
    if (std::isinf(terms[i].v)) terms[i].e = 0;
  }
  return sum(terms);
}

Real real(const Array& x, size_t i) {
  const Element& e = x.at[i];
  if (is_float(x.type)) return {e.v, e.err};
  return {rounded(Type::F32, as_double(x.type, e.n)), e.err};
}

Element element(Type type, Real x) {
  Element out;
  out.v = x.v, out.err = x.e;
  if (!x.known() || std::isnan(x.v) || Unrounded::on()) return out;
  out.v = rounded(type, x.v);
  if (x.e == 0) return out;
  double low = rounded(type, x.v - x.e), high = rounded(type, x.v + x.e);
  out.err = std::max(high - out.v, out.v - low);
  if (high == low) out.err = 0;
  if (std::isnan(out.err)) out.err = kUnknown;
  return out;
}

}  // namespace fuzz
