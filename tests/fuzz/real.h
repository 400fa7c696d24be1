// Arithmetic with running bounds of error, in the precision that the library promises for a type:
// f16 and bf16 compute in f32 and round once per public operation.
//
//   Real x{1.0, 1e-7};                       // the library has something within 1e-7 of 1
//   Math m(Type::F32);
//   m.apply([](double v) { return std::sin(v); }, x, 4);   // 0.84147, err 0.54e-7 and 4 units
//
// How an error travels is found by evaluating the function at both ends of the interval, so no
// derivative is written down twice.
#pragma once
#include <algorithm>
#include <cmath>

#include "tests/fuzz/array.h"

namespace fuzz {

struct Real {
  double v = 0, e = 0;
  bool known() const { return e != kUnknown; }
};
inline constexpr Real kAnything{0, kUnknown};

// While one lives, floats are not rounded and have no errors: what differences are taken of.
class Unrounded {
 public:
  Unrounded() { on() = true; }
  ~Unrounded() { on() = false; }
  static bool& on() {
    thread_local bool flag = false;
    return flag;
  }
};

// While one lives, sums of f16 and bf16 may be made of parts that were rounded to their type: sums
// over several devices are.
class RoundedParts {
 public:
  explicit RoundedParts(bool rounded) { on() = rounded; }
  ~RoundedParts() { on() = false; }
  static bool& on() {
    thread_local bool flag = false;
    return flag;
  }
};

class Math {
 public:
  // Computes operations whose operands and result have this type.
  explicit Math(Type type);

  // A value that was computed with an error of `units` in its last place and `absolute` times that
  // of one.
  Real make(double v, double e, double units = 1, double absolute = 0) const;
  Real unknown_or(bool known, Real x) const { return known ? x : kAnything; }

  template <class F>
  Real apply(const F& f, Real x, double units, double absolute = 0) const {
    if (!x.known()) return kAnything;
    double v = f(x.v), e = 0;
    if (x.e > 0) e = spread(v, {f(x.v - x.e), f(x.v + x.e)});
    return make(v, e, units, absolute);
  }
  template <class F>
  Real apply(const F& f, Real x, Real y, double units, double absolute = 0) const {
    if (!x.known() || !y.known()) return kAnything;
    double v = f(x.v, y.v), e = 0;
    if (x.e > 0 || y.e > 0) {
      e = spread(v, {f(x.v - x.e, y.v - y.e), f(x.v - x.e, y.v + y.e), f(x.v + x.e, y.v - y.e),
                     f(x.v + x.e, y.v + y.e)});
    }
    return make(v, e, units, absolute);
  }

  Real add(Real x, Real y) const;
  Real sub(Real x, Real y) const;
  Real mul(Real x, Real y) const;
  Real div(Real x, Real y) const;
  Real exp(Real x) const;
  Real log(Real x) const;
  Real sqrt(Real x) const;
  Real maximum(Real x, Real y) const;
  // In any order, so the error is bounded by the sum of the magnitudes.
  Real sum(const std::vector<Real>& terms) const;
  Real product(const std::vector<Real>& factors) const;
  Real dot(const std::vector<Real>& a, const std::vector<Real>& b) const;

 private:
  static double spread(double v, std::initializer_list<double> others);
  double eps_, tiny_, huge_;
  double part_ = 0;  // units of a rounded part of a sum
};

// Elements of an array as Reals; integers as the float type converts them.
Real real(const Array& x, size_t i);
Element element(Type type, Real x);
inline Element integer(Type type, int64_t n, bool known = true) {
  Element e;
  e.n = wrapped(type, n), e.err = known ? 0 : kUnknown;
  return e;
}

}  // namespace fuzz
