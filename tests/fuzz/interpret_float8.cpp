// Values that are stored in 8 bits and read again, by the definitions of the four types: a significand
// of 4 or 3 bits, rounded to nearest even.
//
//   f8e4m3fn      to 448, beyond it NaN       0.3 -> 0.3125      500 -> NaN
//   f8e5m2        to 57344, then infinity     0.3 -> 0.3125      61440 -> infinity
//   f8e4m3fnuz    to 240, beyond it NaN, and no -0
//   f8e5m2fnuz    to 57344, beyond it NaN, and no -0
#include <cmath>

#include "tests/fuzz/interpreter.h"

namespace fuzz {
namespace {

struct Format {
  int fraction, least;  // bits of the fraction, exponent of the least normal number
  double largest;
  bool infinities, unsigned_zero;
};

Format format_of(const std::string& name) {
  if (name == "fp8e4m3") return {3, -6, 448, false, false};
  if (name == "fp8e5m2") return {2, -14, 57344, true, false};
  if (name == "fp8e4m3fnuz") return {3, -7, 240, false, true};
  need(name == "fp8e5m2fnuz", "a float of 8 bits");
  return {2, -15, 57344, false, true};
}

double stored(const Format& format, double v) {
  if (std::isnan(v)) return v;
  const double beyond = format.infinities ? std::copysign(INFINITY, v) : NAN;
  if (std::isinf(v)) return beyond;
  double out = v;
  if (v != 0) {
    const int exponent = std::max(std::ilogb(v), format.least);
    const double step = std::ldexp(1, exponent - format.fraction);
    out = std::copysign(std::nearbyint(v / step) * step, v);
  }
  if (std::abs(out) > format.largest) return beyond;
  return format.unsigned_zero && out == 0 ? 0.0 : out;
}

// Rounding keeps the order, so the ends of what may be right become those of the result.
Element stored(const Format& format, const Element& e) {
  Element out = e;
  out.v = stored(format, e.v);
  if (e.err == 0) return out;
  const double low = stored(format, e.v - e.err), high = stored(format, e.v + e.err);
  const bool finite = std::isfinite(low) && std::isfinite(out.v) && std::isfinite(high);
  out.err = finite ? std::max(high - out.v, out.v - low) : kUnknown;
  return out;
}

}  // namespace

void add_float8_rules(std::map<std::string, Rule>& rules) {
  for (const char* op : {"through_float8", "stored_as_float8"}) {
    rules[op] = [](const Step& step, const Operands& in) {
      need(is_float(in[0]->type), "floats");
      const Format format = format_of(step.text);
      Array out = *in[0];
      for (Element& e : out.at) e = stored(format, e);
      return out;
    };
  }
}

}  // namespace fuzz
