// Functions that no device has by itself, as expressions of those that it has: polynomials and
// quotients of them (coefficients of Cephes), chosen so that f32 results have errors of a few units
// in the last place and derivatives of all orders are right where a formula changes.
#include <numbers>
#include <span>

#include "core/ops/activations.h"
#include "core/tensor/approximations_internal.h"

namespace tinyshard::value {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kFar = 1e9;  // beyond it 1 + x^2 is x^2, and x^2 may overflow

Value polynomial(const Value& x, std::span<const double> coefficients) {  // highest power first
  Value out = x * coefficients[0] + coefficients[1];
  for (double c : coefficients.subspan(2)) out = out * x + c;
  return out;
}

// y, and x itself where x^2 is 0: sums make 0 of -0. All derivatives are those of y, which are more than those of x.
Value exact_at_zero(const Value& x, const Value& y) {
  return where(square(x) == 0, detach(x) - (detach(y) - y), y);
}

// x + x z P(z) / Q(z) with z = x^2: odd functions near zero, whose slope there is 1.
Value near_zero(const Value& x, std::span<const double> p, std::span<const double> q) {
  Value z = square(x);
  return exact_at_zero(x, x + x * (z * polynomial(z, p) / polynomial(z, q)));
}

}  // namespace

Value exp_minus_abs(const Value& x) { return tinyshard::exp_minus_abs(x.node()); }

// Kahan: what rounding 1 + x loses in the logarithm, the quotient gives back. Where all of x is lost,
// the series' further terms are too small to be seen in the value, and are its higher derivatives.
Value log1p(const Value& x) {
  Value sum = 1 + x, added = sum - 1;
  Value lost = added == 0, exact = lost | (x > kFar);
  Value factor = where(exact, 1.0, x / where(exact, 1.0, added));
  Value tiny = where(lost, x, 0.0);
  return where(lost, tiny - square(tiny) * (0.5 - tiny * (1.0 / 3)), log(sum) * factor);
}

Value asin_of(const Value& x) {
  static constexpr double kP[] = {3.47933107596021167570e-05,  7.91534994289814532176e-04,
                                  -4.00555345006794114027e-02, 2.01212532134862925881e-01,
                                  -3.25565818622400915405e-01, 1.66666666666666657415e-01};
  static constexpr double kQ[] = {7.70381505559019352791e-02, -6.88283971605453293030e-01,
                                  2.02094576023350569471e+00, -2.40339491173441421878e+00, 1.0};
  return odd(x, [](const Value& v) {
    Value small = v < 0.5, rest = (1 - v) * 0.5;  // asin v = pi / 2 - 2 asin sqrt((1 - v) / 2)
    Value z = where(small, square(v), rest);
    Value s = where(small, v, sqrt(where(small, 1.0, rest)));
    Value y = s + s * (z * polynomial(z, kP) / polynomial(z, kQ));
    return where(small, y, kPi / 2 - 2 * y);
  });
}

Value atan_of(const Value& x) {
  static constexpr double kP[] = {-8.750608600031904122785e-1, -1.615753718733365076637e1,
                                  -7.500855792314704667340e1, -1.228866684490136173410e2,
                                  -6.485021904942025371773e1};
  static constexpr double kQ[] = {1.0,
                                  2.485846490142306297962e1,
                                  1.650270098316988542046e2,
                                  4.328810604912902668951e2,
                                  4.853903996359136964868e2,
                                  1.945506571482613964425e2};
  return odd(x, [](const Value& v) {
    Value far = v > 2.41421356237309504880, middle = v > 0.66, near = where(far, 1.0, v);
    Value t = where(far, -1 / where(far, v, 1.0), where(middle, (near - 1) / (near + 1), near));
    Value y = near_zero(t, kP, kQ);
    return where(far, y + kPi / 2, where(middle, y + kPi / 4, y));
  });
}

// exp(x) - 1. Cephes: x P(x^2) / (Q(x^2) - x P(x^2)) twice, near zero.
Value expm1(const Value& x) {
  static constexpr double kP[] = {1.2617719307481059087798e-4, 3.0299440770744196129956e-2,
                                  9.9999999999999999991025e-1};
  static constexpr double kQ[] = {3.0019850513866445504159e-6, 2.5244834034968410419224e-3,
                                  2.2726554820815502876593e-1, 2.0};
  Value small = abs(x) < 0.5, near = where(small, x, 0.0), z = square(near);
  Value r = near * polynomial(z, kP);
  return where(small, 2 * r / (polynomial(z, kQ) - r), exp(x) - 1);
}

Value sinh_of(const Value& x) {
  static constexpr double kP[] = {-7.89474443963537015605e-1, -1.63725857525983828727e2,
                                  -1.15614435765005216044e4, -3.51754964808151394800e5};
  static constexpr double kQ[] = {1.0, -2.77711081420602794433e2, 3.61578279834431989373e4,
                                  -2.11052978884890840399e6};
  return odd(x, [](const Value& v) {
    Value small = v < 1;
    Value e = exp(where(small, 1.0, v) - std::numbers::ln2);  // exp(v) / 2, which overflows later
    return where(small, near_zero(where(small, v, 0.0), kP, kQ), e - 0.25 / e);
  });
}

Value cosh_of(const Value& x) {
  // exp(x) / 2, which overflows later. Both are smooth; exp(|x|) has no second derivative at 0.
  return exp(x - std::numbers::ln2) + exp(-x - std::numbers::ln2);
}

Value tanh_of(const Value& x) {
  static constexpr double kP[] = {-9.64399179425052238628e-1, -9.92877231001918586564e1,
                                  -1.61468768441708447952e3};
  static constexpr double kQ[] = {1.0, 1.12811678491632931402e2, 2.23548839060100448583e3,
                                  4.84406305325125486048e3};
  return odd(x, [](const Value& v) {
    Value small = v < 0.625;
    Value e = exp(-2 * v);
    return where(small, near_zero(where(small, v, 0.0), kP, kQ), (1 - e) / (1 + e));
  });
}

Value asinh_of(const Value& x) {
  return odd(x, [](const Value& v) {
    Value far = v > kFar, near = where(far, 1.0, v), z = square(near);
    Value y = exact_at_zero(near, log1p(near + z / (1 + sqrt(z + 1))));
    return where(far, log(where(far, v, 1.0)) + std::numbers::ln2, y);
  });
}

Value acosh_of(const Value& x) {
  Value far = x > kFar, t = where(far, 1.0, x) - 1;
  // The roots of both factors: below 1 there is no result, but far below it t + sqrt(t * (t + 2))
  // is 0.
  Value y = log1p(t + sqrt(t) * sqrt(t + 2));
  return where(far, log(where(far, x, 1.0)) + std::numbers::ln2, y);
}

Value atanh_of(const Value& x) {
  return odd(x, [](const Value& v) { return log1p(2 * v / (1 - v)) * 0.5; });
}

namespace {

// Abramowitz and Stegun 7.1.26, to 1.5e-7: as good as f32 where erf is not small.
Value erf_from_one(const Value& v) {
  static constexpr double kTerms[] = {1.061405429, -1.453152027, 1.421413741, -0.284496736,
                                      0.254829592};
  Value w = minimum(v, 12.0);  // erf is 1 from 4 on, and an infinity times exp(-infinity) no slope
  Value t = 1 / (1 + w * 0.3275911);
  return 1 - t * polynomial(t, kTerms) * exp(-square(w));
}

Value erf_f32(const Value& v) {
  static constexpr double kT[] = {
      7.853861353153693e-5, -8.010193625184903e-4, 5.188327685732524e-3, -2.685381193529856e-2,
      1.128358514861418e-1, -3.761262582423300e-1, 1.128379165726710e+0};
  Value small = v < 1, near = where(small, v, 0.0);
  return where(small, near * polynomial(square(near), kT), erf_from_one(v));
}

Value erf_f64(const Value& v) {
  static constexpr double kPP[] = {-2.37630166566501626084e-05, -5.77027029648944159157e-03,
                                   -2.84817495755985104766e-02, -3.25042107247001499370e-01,
                                   1.28379167095512558561e-01};
  static constexpr double kQQ[] = {-3.96022827877536812320e-06, 1.32494738004321644526e-04,
                                   5.08130628187576562776e-03,  6.50222499887672944485e-02,
                                   3.97917223959155352819e-01,  1.0};
  static constexpr double kPA[] = {-2.16637559486879084300e-03, 3.54783043256182359371e-02,
                                   -1.10894694282396677476e-01, 3.18346619901161753674e-01,
                                   -3.72207876035701323847e-01, 4.14856118683748331666e-01,
                                   -2.36211856075265944077e-03};
  static constexpr double kQA[] = {1.19844998467991074170e-02,
                                   1.36370839120290507362e-02,
                                   1.26171219808761642112e-01,
                                   7.18286544141962662868e-02,
                                   5.40397917702171048937e-01,
                                   1.06420880400844228286e-01,
                                   1.0};
  static constexpr double kRA[] = {-9.81432934416914548592e+00, -8.12874355063065934246e+01,
                                   -1.84605092906711035994e+02, -1.62396669462573470355e+02,
                                   -6.23753324503260060396e+01, -1.05586262253232909814e+01,
                                   -6.93858572707181764372e-01, -9.86494403484714822705e-03};
  static constexpr double kSA[] = {
      -6.04244152148580987438e-02, 6.57024977031928170135e+00, 1.08635005541779435134e+02,
      4.29008140027567833386e+02,  6.45387271733267880336e+02, 4.34565877475229228821e+02,
      1.37657754143519042600e+02,  1.96512716674392571292e+01, 1.0};
  constexpr double kAtOne = 8.45062911510467529297e-01;
  Value small = v < 0.84375, middle = v < 1.25;
  Value near = where(small, v, 0.0), z = square(near), t = where(middle, v, 1.0) - 1;
  // Above 2.857 erfc is at most 5e-5, of which the same formula gives enough digits.
  Value far = where(middle, 1.25, minimum(v, 6.0)), y = 1 / square(far);
  Value tail = exp(polynomial(y, kRA) / polynomial(y, kSA) - 0.5625 - square(far)) / far;
  Value at_small = near + near * (polynomial(z, kPP) / polynomial(z, kQQ));
  Value at_middle = kAtOne + polynomial(t, kPA) / polynomial(t, kQA);
  return where(small, at_small, where(middle, at_middle, 1 - tail));
}

}  // namespace

Value erf_of(const Value& x) {
  return odd(x, [](const Value& v) { return v.dtype() == DType::F64 ? erf_f64(v) : erf_f32(v); });
}

}  // namespace tinyshard::value
