// Steps whose elements are computed one by one: functions, arithmetic, comparisons, types.
#include <cmath>

#include "tests/fuzz/draw.h"

namespace fuzz {
namespace {

using Names = std::vector<std::string>;

const Names kSmooth = {
    "neg",   "square", "exp",        "sin",       "cos",         "tanh",       "sigmoid",
    "silu",  "gelu",   "gelu_exact", "mish",      "softplus",    "logsigmoid", "quick_gelu",
    "erf",   "atan",   "asinh",      "softsign",  "selu",        "elu",        "celu",
    "relu",  "abs",    "leaky_relu", "hardswish", "hardsigmoid", "relu6",      "sinh",
    "cosh",  "exp2",   "sqrt",       "rsqrt",     "reciprocal",  "log",        "log2",
    "log10", "asin",   "acos",       "acosh",     "atanh",       "tan",        "swish"};
// Functions of a parameter or two, and values of these that say something.
struct Shaped {
  const char* op;
  std::vector<double> d;
};
const std::vector<Shaped> kShaped = {{"clamp", {-0.75, 1.25}},  {"clip", {-0.5, 0.5}},
                                     {"clip_low", {-0.25}},     {"hardtanh", {-0.75, 0.5}},
                                     {"leaky_relu_by", {0.25}}, {"elu_by", {0.5}},
                                     {"celu_by", {1.5}},        {"selu_by", {1.5, 1.25}},
                                     {"softplus_by", {2}},      {"hardsigmoid_by", {0.25, 0.375}}};
const Names kSame = {"contiguous", "detach", "clone", "contiguous_backward"};
const Names kSteps = {"floor", "ceil", "round", "trunc", "sign"};
const Names kTests = {"isnan", "isinf", "isfinite", "logical_not", "isinf_side"};
const Names kOfIntegers = {"abs",  "sign",        "square",      "relu",       "relu6",
                           "neg",  "bitwise_not", "logical_not", "sin",        "sigmoid",
                           "sqrt", "isnan",       "floor",       "clamp_whole"};
const Names kArithmetic = {"add", "sub", "mul", "div", "maximum", "minimum"};
const Names kOddArithmetic = {"mod",      "fmod",      "floor_div", "div_trunc",
                              "copysign", "logaddexp", "pow"};
const Names kOperators = {"operator+", "operator-", "operator*", "operator/"};
const Names kOddOperators = {"operator%", "pow_of", "div_of"};
const Names kBits = {"bitwise_and", "bitwise_or", "bitwise_xor", "lshift",     "rshift",
                     "operator&",   "operator|",  "operator^",   "operator<<", "operator>>"};
const Names kComparisons = {
    "eq",         "ne",         "lt",        "gt",        "le",         "ge",
    "operator==", "operator!=", "operator<", "operator>", "operator<=", "operator>="};

// Both operands; false where there are none.
bool pair(Draft& d, Step& s, int x) {
  if (x < 0) return false;
  int y = d.partner(x);
  s.in = d.chance(50) ? std::vector<int>{x, y} : std::vector<int>{y, x};
  return true;
}

// With a number, which operators may have on their left: n is whether it is whole, and that.
bool with_number(Draft& d, Step& s, int x) {
  Type type = d.type(x);
  static const std::vector<double> kReals = {0.5, -0.25, 2, 1.5, 0.1, 3, -1};
  s.in = {x};
  bool whole = is_float(type) ? d.chance(20) : d.chance(85);
  s.d = {whole ? double(d.pick(is_unsigned(type) || type == Type::Bool ? 0 : -3, 5))
               : d.one_of(kReals)};
  // A sum that nearly overflows by the number, so that terms which are larger than it would.
  if (d.profile().meets_sums && !d.gradient() && is_float(type) && d.chance(15)) {
    double most = 0;
    for (const Element& e : d.at(x).at) most = std::max(most, std::abs(e.v));
    const double huge = type == Type::F16 ? 30000 : type == Type::F64 ? 1e307 : 1e38;
    if (most > 0 && most < 1e6) {
      s.op = "mul", s.n = {0}, s.d = {huge / most};
      return true;
    }
  }
  if (type == Type::Bool) whole = false;
  s.n = {whole};
  s.op = d.one_of(kArithmetic);
  if (type == Type::Bool) return true;
  if (d.chance(25)) {
    s.op = d.one_of(kOperators);
    s.n.push_back(d.chance(50));
    // A negative number on the left of an unsigned tensor is no number of its type.
    return true;
  }
  if (d.chance(20)) {
    s.op = "pow";
    static const std::vector<double> kPowers = {2, 3, 0.5, -1, 1.5, 1, 4};
    s.d = {whole ? double(d.pick(0, 4)) : d.one_of(kPowers)};
  }
  return true;
}

}  // namespace

bool draw_unary(Draft& d, Step& s) {
  int x = d.any();
  if (x < 0) return false;
  s.in = {x};
  Type type = d.type(x);
  if (type == Type::Bool) {
    s.op = d.chance(50) ? "logical_not" : "bitwise_not";
  } else if (is_float(type)) {
    s.op = d.chance(85) || d.gradient() ? d.one_of(kSmooth) : d.one_of(kSteps);
    if (d.chance(10)) {
      const Shaped& shaped = d.one_of(kShaped);
      s.op = shaped.op, s.d = shaped.d;
    }
    if (d.chance(6)) s.op = d.one_of(kSame), s.d.clear();
    if (d.chance(3) && !d.gradient()) s.op = d.one_of(kTests), s.d.clear();
    if (s.op == "isinf_side") s.n = {d.chance(50), d.chance(50)};
  } else {
    s.op = d.chance(90) ? d.one_of(kOfIntegers) : d.one_of(kSame);
    if (s.op == "clamp_whole") s.n = {is_unsigned(type) ? 1 : -2, 3};
  }
  return true;
}

bool draw_binary(Draft& d, Step& s) {
  int x = d.any();
  if (x < 0) return false;
  int kind = d.pick(0, 99);
  if (kind < 25) return with_number(d, s, x);
  if (!pair(d, s, x)) return false;
  Type both = promoted(d.type(s.in[0]), d.type(s.in[1]));
  if (kind < 70)
    s.op = d.one_of(kArithmetic);
  else if (kind < 80)
    s.op = d.one_of(kOperators);
  else if (is_float(both))
    s.op = d.gradient()   ? "logaddexp"
           : d.chance(80) ? d.one_of(kOddArithmetic)
                          : d.one_of(kOddOperators);
  else
    s.op = d.chance(60)   ? d.one_of(kBits)
           : d.chance(80) ? d.one_of(kOddArithmetic)
                          : d.one_of(kOddOperators);
  if (s.op.starts_with("operator")) s.n = {0, d.chance(50)};
  if (both == Type::Bool) {
    static const Names kOfBools = {"add", "bitwise_and", "bitwise_or", "bitwise_xor", "operator&"};
    s.op = d.one_of(kOfBools);
  }
  if (kind > 95 && d.type(s.in[0]) == d.type(s.in[1]) && is_float(both)) {
    s.op = "lerp", s.n.clear();
    s.in.push_back(s.in[0]);
  }
  return true;
}

bool draw_comparison(Draft& d, Step& s) {
  // Equality has no slope, and differences move equal values apart.
  static const Names kOrders = {"lt", "gt", "le", "ge"};
  const Names& comparisons = d.gradient() ? kOrders : kComparisons;
  if (!pair(d, s, d.any())) return false;
  if (d.chance(40)) {
    s.op = d.one_of(comparisons);
    if (s.op.starts_with("operator")) s.n = {0, 0};
    if (d.chance(10)) s.op = "isclose", s.n = {d.chance(50)};
    return true;
  }
  // A condition, and a choice by it.
  Step compare = s;
  compare.op = d.one_of(comparisons);
  if (compare.op.starts_with("operator")) compare.n = {0, 0};
  std::vector<int> both = s.in;
  int condition = d.keep(compare);
  if (condition < 0) return false;
  if (d.chance(25)) {
    s.op = "masked_fill", s.in = {both[0], condition}, s.n = {1}, s.d = {2};
  } else {
    s.op = "where", s.in = {condition, both[0], both[1]};
  }
  return true;
}

bool draw_types(Draft& d, Step& s) {
  int x = d.any();
  if (x < 0) return false;
  s.in = {x}, s.op = "cast";
  Type to = Type(d.pick(0, kTypes - 1)), main = d.profile().types[0];
  if (d.gradient()) to = is_float(d.type(x)) ? (d.chance(50) ? Type::F64 : Type::F32) : main;
  if (!d.gradient() && d.chance(50)) to = d.main_type();
  if (d.gradient() && main == Type::F64) to = Type::F64;
  s.text = std::string(name(to));
  if (d.gradient()) return true;
  if (is_float(d.type(x)) && d.chance(25)) {
    static const Names kFloat8 = {"fp8e4m3", "fp8e5m2", "fp8e4m3fnuz", "fp8e5m2fnuz"};
    s.op = d.chance(50) ? "through_float8" : "stored_as_float8", s.text = d.one_of(kFloat8);
    return true;
  }
  if (d.chance(25)) {
    s.op = "bitcast";
    std::vector<Type> same;
    for (int i = 1; i < kTypes; ++i) {
      if (bytes(Type(i)) == bytes(d.type(x)) && Type(i) != d.type(x)) same.push_back(Type(i));
    }
    if (same.empty()) return false;
    s.text = std::string(name(d.one_of(same)));
  } else if (d.chance(25)) {
    static const Names kNamed = {"to_float", "to_double", "to_half",  "to_bfloat16",
                                 "to_int",   "to_long",   "to_short", "to_bool"};
    s.op = d.one_of(kNamed), s.text.clear();
  }
  return true;
}

// Values that are made of none, or of the shape of one.
bool draw_making(Draft& d, Step& s) {
  if (d.gradient()) return false;
  Type type = d.main_type();
  s.text = std::string(name(type));
  switch (d.pick(0, 4)) {
    case 0: {
      static const Names kLike = {"full_like", "zeros_like", "ones_like"};
      int x = d.any();
      if (x < 0) return false;
      s.op = d.one_of(kLike), s.in = {x}, s.text.clear();
      if (s.op == "full_like") s.n = {1}, s.d = {double(d.pick(0, 3))};
      return true;
    }
    case 1: {
      if (type == Type::Bool) return false;
      int64_t first = is_unsigned(type) ? 0 : d.pick(-3, 3), by = d.pick(1, 3);
      s.op = "arange", s.n = {first, first + by * d.pick(1, 12), by};
      return true;
    }
    case 2:
      if (!is_float(type)) return false;
      s.op = "linspace", s.n = {d.pick(1, 12)}, s.d = {-1.5, 2.25};
      return true;
    case 3:
      s.op = "eye", s.n = {d.pick(1, 8), d.pick(1, 8)};
      return true;
    default: {
      int x = d.with_dims(1), y = d.with_dims(1);
      if (x < 0 || d.at(x).rank() != 1 || d.at(y).rank() != 1 || d.type(x) != d.type(y))
        return false;
      s.op = "meshgrid", s.in = {x, y}, s.n = {d.pick(0, 1), d.chance(50)}, s.text.clear();
      return true;
    }
  }
}

}  // namespace fuzz
