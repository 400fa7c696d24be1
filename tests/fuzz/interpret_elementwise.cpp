// Rules of operations on single elements.
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

using Function = double (*)(double);

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }
// x times a gate that shuts faster than x falls to minus infinity.
double gated(double x, double gate) { return x == -INFINITY ? -0.0 : x * gate; }
double gelu(double x) {
  double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return gated(x, 0.5 * (1 + std::tanh(u)));
}

struct Unary {
  const char* op;
  Function f;
  double units, absolute;  // accuracy; absolute also grows with x
  bool pole = false;       // at zero
};

// Functions whose result is a float, of anything.
const Unary kFloatFunctions[] = {
    {"sqrt", [](double x) { return std::sqrt(x); }, 1, 0},
    {"rsqrt", [](double x) { return 1 / std::sqrt(x); }, 3, 0, true},
    {"reciprocal", [](double x) { return 1 / x; }, 2, 0, true},
    {"exp", [](double x) { return std::exp(x); }, 8, 0},
    {"exp2", [](double x) { return std::exp2(x); }, 8, 0},
    {"log", [](double x) { return std::log(x); }, 8, 2, true},
    {"log2", [](double x) { return std::log2(x); }, 8, 2, true},
    {"log10", [](double x) { return std::log10(x); }, 8, 2, true},
    {"sin", [](double x) { return std::sin(x); }, 8, 2},
    {"cos", [](double x) { return std::cos(x); }, 8, 4},
    {"asin", [](double x) { return std::asin(x); }, 16, 2},
    {"acos", [](double x) { return std::acos(x); }, 16, 4},
    {"atan", [](double x) { return std::atan(x); }, 16, 2},
    {"sinh", [](double x) { return std::sinh(x); }, 32, 4},
    {"cosh", [](double x) { return std::cosh(x); }, 32, 4},
    {"tan", [](double x) { return std::tan(x); }, 32, 16},
    {"tanh", [](double x) { return std::tanh(x); }, 16, 4},
    {"asinh", [](double x) { return std::asinh(x); }, 16, 4},
    {"acosh", [](double x) { return std::acosh(x); }, 16, 16},
    {"atanh", [](double x) { return std::atanh(x); }, 32, 4},
    {"erf", [](double x) { return std::erf(x); }, 32, 8},
    {"sigmoid", sigmoid, 16, 0},
    {"logsigmoid", [](double x) { return -softplus(-x); }, 16, 4},
    {"softplus", softplus, 16, 4},
    {"hardswish", [](double x) { return gated(x, clamp(x + 3, 0, 6) / 6); }, 8, 4},
    {"hardsigmoid", [](double x) { return clamp(x / 6 + 0.5, 0, 1); }, 8, 2},
    {"quick_gelu", [](double x) { return gated(x, sigmoid(1.702 * x)); }, 32, 4},
    {"gelu", gelu, 32, 8},
    {"gelu_exact", [](double x) { return gated(x, 0.5 * (1 + std::erf(x / std::numbers::sqrt2))); },
     32, 8},
    {"silu", [](double x) { return gated(x, sigmoid(x)); }, 32, 4},
    {"swish", [](double x) { return gated(x, sigmoid(x)); }, 32, 4},
    {"mish", [](double x) { return gated(x, std::tanh(softplus(x))); }, 64, 8},
    {"softsign",
     [](double x) { return std::isinf(x) ? std::copysign(1.0, x) : x / (1 + std::abs(x)); }, 8, 0},
    {"elu", [](double x) { return x > 0 ? x : std::expm1(x); }, 16, 4},
    {"celu", [](double x) { return x > 0 ? x : std::expm1(x); }, 16, 4},
    {"selu", [](double x) { return 1.0507 * (x > 0 ? x : 1.67326 * std::expm1(x)); }, 16, 8},
};

// Functions that keep the type of integers.
const Unary kSameType[] = {
    {"abs", [](double x) { return std::abs(x); }, 0, 0},
    {"sign", sign, 0, 0},
    {"square", [](double x) { return x * x; }, 1, 0},
    {"relu", [](double x) { return x > 0 || std::isnan(x) ? x : 0; }, 0, 0},
    {"relu6", [](double x) { return clamp(x, 0, 6); }, 0, 0},
    {"floor", [](double x) { return std::floor(x); }, 0, 0},
    {"ceil", [](double x) { return std::ceil(x); }, 0, 0},
    {"trunc", [](double x) { return std::trunc(x); }, 0, 0},
    {"round", [](double x) { return std::nearbyint(x); }, 0, 0},
    {"neg", [](double x) { return -x; }, 0, 0},
};

Array float_unary(const Unary& row, const Array& x) {
  Type type = float_type(x.type);
  Math math(type);
  Array out(type, x.shape);
  std::string op = row.op;
  for (size_t i = 0; i < x.at.size(); ++i) {
    Real v = real(x, i);
    if (!is_float(x.type)) v = {element(type, v).v, v.e};
    double size = std::max(1.0, std::abs(v.v));
    bool wrong = row.pole && v.known() && v.e > 0 && std::abs(v.v) <= v.e;
    // Steep ones lose in the argument what the interval does not show.
    double units = row.units + (row.units >= 8 ? 4 * std::min(size, 1e3) : 0);
    double absolute = row.absolute * size;
    if (op == "sqrt") {
      // A number that may be below zero may have no root.
      bool below = v.known() && v.e > 0 && v.v - v.e < 0;
      out.at[i] = element(type, below ? kAnything : math.sqrt(v));
      continue;
    }
    if (op == "tan") {
      absolute *= 1 + std::tan(v.v) * std::tan(v.v);
      // Near a pole, which side it is on may be open.
      wrong = v.known() && std::abs(std::cos(v.v)) <= 8 * (v.e + 1e-7 * size);
    }
    bool edge = (op == "asin" || op == "acos" || op == "acosh" || op == "atanh") && v.known() &&
                v.e > 0 && std::abs(std::abs(v.v) - 1) <= v.e;
    if ((op == "sin" || op == "cos" || op == "tan") && std::abs(v.v) > 1e4) edge = true;
    out.at[i] = element(type, wrong || edge ? kAnything : math.apply(row.f, v, units, absolute));
  }
  return out;
}

Array same_type_unary(const Unary& row, const Array& x) {
  Array out(x.type, x.shape);
  Math math(x.type);
  std::string op = row.op;
  for (size_t i = 0; i < x.at.size(); ++i) {
    if (is_float(x.type)) {
      out.at[i] = element(x.type, math.apply(row.f, real(x, i), row.units));
      continue;
    }
    int64_t n = x.at[i].n;
    bool negative = n < 0 && !is_unsigned(x.type);
    if (op == "abs") n = negative ? int64_t(-uint64_t(n)) : n;
    if (op == "sign") n = negative ? -1 : n != 0;
    if (op == "square") n = x.type == Type::Bool ? n : int64_t(uint64_t(n) * uint64_t(n));
    if (op == "relu") n = negative ? 0 : n;
    if (op == "relu6") n = negative ? 0 : uint64_t(n) > 6 ? 6 : n;
    if (op == "neg") n = x.type == Type::Bool ? !n : int64_t(-uint64_t(n));
    out.at[i] = integer(x.type, n, x.at[i].known());
  }
  return out;
}

// --- two operands --------------------------------------------------------------------------------

// Numbers in place of a second tensor take the type of the first, or make an integer a float.
Array number(const Array& x, const Step& step) {
  bool whole = !step.n.empty() && step.n[0];
  Type type = x.type;
  if (!whole) type = float_type(x.type);
  if (whole && x.type == Type::Bool) type = Type::I32;
  Array out(type, {});
  out.at[0].v = rounded(type, step.d.at(0));
  out.at[0].n = int64_t(step.d.at(0));
  return out;
}

struct Matched {
  Array a, b;
};

Matched matched(const Step& step, const Operands& in) {
  Array second = in.size() > 1 ? *in[1] : number(*in[0], step);
  Type type = promoted(in[0]->type, second.type);
  Shape shape = broadcast(in[0]->shape, second.shape);
  return {expanded(converted(*in[0], type), shape), expanded(converted(second, type), shape)};
}

// The rest has the sign of the divisor, the quotient is how many times that fits.
double floor_mod(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
double floor_quotient(double a, double b) {
  if (b == 0) return a / b;
  const double rest = std::fmod(a, b), times = std::nearbyint((a - rest) / b);
  return rest != 0 && (rest < 0) != (b < 0) ? times - 1 : times;
}

// pow(0, y) and pow(x, 0) as everywhere; the library goes through logarithms.
using Binary = double (*)(double, double);
struct FloatBinary {
  const char* op;
  Binary f;
  double units, absolute;
};
const FloatBinary kFloatBinaries[] = {
    {"add", [](double a, double b) { return a + b; }, 1, 0},
    {"sub", [](double a, double b) { return a - b; }, 1, 0},
    {"mul", [](double a, double b) { return a * b; }, 1, 0},
    {"div", [](double a, double b) { return a / b; }, 2, 0},
    {"maximum", [](double a, double b) { return std::isnan(a) || a > b ? a : b; }, 0, 0},
    {"minimum", [](double a, double b) { return std::isnan(a) || a < b ? a : b; }, 0, 0},
    {"pow", [](double a, double b) { return std::pow(a, b); }, 16, 0},
    {"copysign", [](double a, double b) { return std::copysign(a, b); }, 0, 0},
    {"logaddexp",
     [](double a, double b) {
       if (std::isnan(a) || std::isnan(b)) return a + b;
       double m = std::max(a, b);
       return std::isinf(m) ? m : m + std::log1p(std::exp(-std::abs(a - b)));
     },
     16, 4},
    {"mod", floor_mod, 2, 0},
    {"fmod", [](double a, double b) { return std::fmod(a, b); }, 0, 0},
    {"div_trunc", [](double a, double b) { return std::trunc(a / b); }, 0, 0},
    {"floor_div", floor_quotient, 2, 0},
};

int64_t integer_power(Type type, int64_t base, int64_t exponent) {
  if (exponent < 0 && !is_unsigned(type)) {
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 ? -1 : 1;
    return 0;
  }
  uint64_t out = 1, factor = uint64_t(base);
  for (uint64_t n = uint64_t(exponent); n; n >>= 1) {
    if (n & 1) out *= factor;
    factor *= factor;
  }
  return int64_t(out);
}

// Integers; operands are values of the type, so 64-bit arithmetic and a wrap are right.
int64_t on_integers(const std::string& op, Type type, int64_t a, int64_t b) {
  bool u = is_unsigned(type) || type == Type::Bool;
  uint64_t x = uint64_t(a), y = uint64_t(b);
  bool less = u ? x < y : a < b;
  if (type == Type::Bool) {
    if (op == "add") return a | b;
    if (op == "sub") return a ^ b;
  }
  if (op == "add") return int64_t(x + y);
  if (op == "sub") return int64_t(x - y);
  if (op == "mul") return int64_t(x * y);
  if (op == "maximum") return less ? b : a;
  if (op == "minimum") return less ? a : b;
  if (op == "bitwise_and") return a & b;
  if (op == "bitwise_or") return a | b;
  if (op == "bitwise_xor") return a ^ b;
  if (op == "lshift") return y >= 8 * bytes(type) ? 0 : int64_t(x << y);
  if (op == "rshift") {
    if (y >= 8 * bytes(type)) return !u && a < 0 ? -1 : 0;  // the sign is left
    return u ? int64_t(x >> y) : a >> y;
  }
  if (op == "pow") return integer_power(type, a, b);
  if (b == 0) return 0;
  bool divides = op == "floor_div" || op == "div_trunc";
  if (u) return divides ? int64_t(x / y) : int64_t(x % y);
  if (b == -1) return divides ? int64_t(-x) : 0;
  int64_t quotient = a / b, rest = a % b;
  if (op == "fmod") return rest;
  if (op == "div_trunc") return quotient;
  bool above = rest != 0 && (rest < 0) != (b < 0);
  return op == "floor_div" ? quotient - above : above ? rest + b : rest;
}

// The methods that operators and the free functions call.
const std::map<std::string, std::string> kMethodOf = {
    {"operator+", "add"},        {"operator-", "sub"},
    {"operator*", "mul"},        {"operator/", "div"},
    {"operator%", "mod"},        {"operator&", "bitwise_and"},
    {"operator|", "bitwise_or"}, {"operator^", "bitwise_xor"},
    {"operator<<", "lshift"},    {"operator>>", "rshift"},
    {"operator==", "eq"},        {"operator!=", "ne"},
    {"operator<", "lt"},         {"operator>", "gt"},
    {"operator<=", "le"},        {"operator>=", "ge"},
    {"pow_of", "pow"},           {"div_of", "div_trunc"}};

Array binary(const Step& step, const Operands& in) {
  auto [a, b] = matched(step, in);
  std::string op = step.op;
  if ((op == "div" || op == "copysign" || op == "logaddexp") && !is_float(a.type)) {
    a = converted(a, float_type(a.type)), b = converted(b, a.type);
  }
  bool divides = op == "floor_div" || op == "div_trunc" || op == "mod" || op == "fmod";
  if ((divides || op == "pow") && a.type == Type::Bool) throw Invalid("bools");
  Array out(a.type, a.shape);
  const FloatBinary* row = nullptr;
  for (const FloatBinary& r : kFloatBinaries) row = op == r.op ? &r : row;
  need(row || !is_float(a.type), "needs integers");
  need(!((op == "lshift" || op == "rshift") && !is_int(a.type)), "needs integers");
  Math math(a.type);
  for (size_t i = 0; i < out.at.size(); ++i) {
    if (!is_float(a.type)) {
      bool known = a.at[i].known() && b.at[i].known();
      if ((op == "lshift" || op == "rshift") && is_signed(a.type) && b.at[i].n < 0) known = false;
      out.at[i] = integer(a.type, on_integers(op, a.type, a.at[i].n, b.at[i].n), known);
      continue;
    }
    Real x = real(a, i), y = real(b, i);
    if (op == "div") {
      out.at[i] = element(a.type, math.div(x, y));
      continue;
    }
    double units = row->units, absolute = row->absolute;
    // Which sign a NaN has is nobody's business.
    if (op == "copysign" && std::isnan(y.v)) y = kAnything;
    if (divides) {
      if (y.known() && std::abs(y.v) <= y.e) {
        out.at[i] = element(a.type, kAnything);
        continue;
      }
      // A quotient that is rounded may be the next whole number; rests and how often a divisor fits
      // are exact.
      if (op == "div_trunc")
        x.e = std::max(x.e, (a.type == Type::F64 ? 1e-15 : 2.5e-7) * std::abs(x.v));
      if (x.e + y.e > 0) absolute += 2 * (std::abs(x.v) + std::abs(y.v));
      // Rests of inexact numbers are anything where the quotient may be another one.
      const double most = (std::abs(x.v) + x.e) / std::max(1e-300, std::abs(y.v) - y.e);
      const double least = (std::abs(x.v) - x.e) / (std::abs(y.v) + y.e);
      const bool steady = least > 0 && most < 1e6 && std::floor(least) == std::floor(most);
      if (x.e + y.e > 0 && op != "div_trunc" && !steady) {
        out.at[i] = element(a.type, kAnything);
        continue;
      }
    }
    if (op == "logaddexp") absolute *= std::max({1.0, std::abs(x.v), std::abs(y.v)});
    if (op == "pow") {
      units += 8 * std::abs(y.v * std::log2(std::max(1e-30, std::abs(x.v))));
      bool whole = y.e == 0 && y.v == std::trunc(y.v);
      if (!whole && x.v < x.e) x = x.v == 0 && x.e == 0 ? x : kAnything;
      if (x.e > 0 && std::abs(x.v) <= x.e && !(whole && y.v > 0)) x = kAnything;
    }
    out.at[i] = element(a.type, math.apply(row->f, x, y, units, absolute));
  }
  return out;
}

// n: the second operand's number is whole; whether it stands on the left.
Array by_operator(const Step& step, const Operands& in) {
  Step same = step;
  same.op = kMethodOf.at(step.op);
  bool swapped = step.n.size() > 1 && step.n[1];
  if (!swapped) return interpret(same, in);
  Array number_first = in.size() > 1 ? *in[1] : number(*in[0], step);
  return interpret(same, {&number_first, in[0]});
}

Array isclose(const Step& step, const Operands& in) {
  auto [a, b] = matched(step, in);
  Array out(Type::Bool, a.shape);
  Math math(is_float(a.type) ? a.type : Type::F64);
  for (size_t i = 0; i < out.at.size(); ++i) {
    Real x = real(a, i), y = real(b, i);
    if (!is_float(a.type))
      x = {as_double(a.type, a.at[i].n), a.at[i].err},
      y = {as_double(b.type, b.at[i].n), b.at[i].err};
    bool known = x.known() && y.known(), value = x.v == y.v;
    if (std::isnan(x.v) || std::isnan(y.v)) {
      value = step.n.at(0) && std::isnan(x.v) && std::isnan(y.v);
    } else if (known && !std::isinf(x.v) && !std::isinf(y.v)) {
      auto size = [](double v) { return std::abs(v); };
      Real apart = math.apply(size, math.sub(x, y), 0);
      Real most = math.add(math.mul(math.apply(size, y, 0), {1e-5, 1e-13}), {1e-8, 1e-16});
      value = apart.v <= most.v;
      known = apart.known() && most.known() && std::abs(apart.v - most.v) > apart.e + most.e;
    }
    out.at[i] = integer(Type::Bool, value, known);
  }
  return out;
}

Array comparison(const Step& step, const Operands& in) {
  auto [a, b] = matched(step, in);
  Array out(Type::Bool, a.shape);
  const std::string& op = step.op;
  auto holds = [&](auto x, auto y) {
    return op == "eq"   ? x == y
           : op == "ne" ? x != y
           : op == "lt" ? x < y
           : op == "gt" ? x > y
           : op == "le" ? x <= y
                        : x >= y;
  };
  for (size_t i = 0; i < out.at.size(); ++i) {
    const Element &x = a.at[i], &y = b.at[i];
    bool known = x.known() && y.known(), value = false;
    if (is_float(a.type)) {
      value = holds(x.v, y.v);
      double e = x.err + y.err;
      if (e > 0 && std::abs(x.v - y.v) <= e) known = false;
    } else if (is_unsigned(a.type)) {
      value = holds(uint64_t(x.n), uint64_t(y.n));
    } else {
      value = holds(x.n, y.n);
    }
    out.at[i] = integer(Type::Bool, value, known);
  }
  return out;
}

Element chosen(const Element& condition, const Element& x, const Element& y) {
  if (condition.known()) return condition.n ? x : y;
  Element out = x;
  const bool same = x.n == y.n && x.v == y.v && x.known() && y.known();
  out.err = same ? std::max(x.err, y.err) : kUnknown;
  return out;
}

Array where(const Array& condition, const Array& x, const Array& y) {
  Type type = promoted(x.type, y.type);
  Array c = converted(condition, Type::Bool);
  Shape shape = broadcast(broadcast(c.shape, x.shape), y.shape);
  Array cc = expanded(c, shape), a = expanded(converted(x, type), shape),
        b = expanded(converted(y, type), shape), out(type, shape);
  for (size_t i = 0; i < out.at.size(); ++i) out.at[i] = chosen(cc.at[i], a.at[i], b.at[i]);
  return out;
}

Array bitcast(const Array& x, Type type) {
  need(bytes(x.type) == bytes(type) && x.type != Type::Bool && type != Type::Bool, "bitcast");
  Array out = from_bytes(type, x.shape, to_bytes(x));
  for (size_t i = 0; i < out.at.size(); ++i) {
    const Element& e = x.at[i];
    // Which NaN it is, which of neighbouring floats, and which zero a sum leaves, shows in the bits.
    if (e.err != 0 || (is_float(x.type) && (std::isnan(e.v) || e.v == 0))) out.at[i].err = kUnknown;
  }
  return out;
}

Array test_of(const Array& x, bool (*f)(double)) {
  Array out(Type::Bool, x.shape);
  for (size_t i = 0; i < x.at.size(); ++i) {
    out.at[i] = integer(Type::Bool, is_float(x.type) ? f(x.at[i].v) : f(0), x.at[i].known());
  }
  return out;
}

// Functions of an element and of d, which is in the element's type where the result has it.
using WithNumbers = double (*)(double x, const std::vector<double>& d);
struct UnaryOfNumbers {
  const char* op;
  WithNumbers f;
  double units, absolute;
  bool of_floats;  // computed in floats, whatever the operand is
};
const UnaryOfNumbers kOfNumbers[] = {
    {"clamp", [](double x, const auto& d) { return clamp(x, d.at(0), d.at(1)); }, 0, 0, false},
    {"clip", [](double x, const auto& d) { return clamp(x, d.at(0), d.at(1)); }, 0, 0, false},
    {"hardtanh", [](double x, const auto& d) { return clamp(x, d.at(0), d.at(1)); }, 0, 0, false},
    {"clip_low", [](double x, const auto& d) { return x < d.at(0) ? d[0] : x; }, 0, 0, false},
    {"leaky_relu", [](double x, const auto&) { return x < 0 ? x * 0.01 : x; }, 3, 0, true},
    {"leaky_relu_by", [](double x, const auto& d) { return x < 0 ? x * d.at(0) : x; }, 3, 0, true},
    {"elu_by", [](double x, const auto& d) { return x > 0 ? x : d.at(0) * std::expm1(x); }, 16, 4,
     true},
    {"celu_by", [](double x, const auto& d) { return x > 0 ? x : d.at(0) * std::expm1(x / d[0]); },
     16, 8, true},
    {"selu_by",
     [](double x, const auto& d) { return d.at(1) * (x > 0 ? x : d[0] * std::expm1(x)); }, 16, 8,
     true},
    {"softplus_by", [](double x, const auto& d) { return softplus(x * d.at(0)) / d[0]; }, 16, 8,
     true},
    {"hardsigmoid_by", [](double x, const auto& d) { return clamp(x * d.at(0) + d.at(1), 0, 1); },
     8, 2, true},
};

void add_functions_of_numbers(std::map<std::string, Rule>& rules) {
  for (const UnaryOfNumbers& row : kOfNumbers) {
    rules[row.op] = [&row](const Step& step, const Operands& in) {
      const Array& x = *in[0];
      need(is_float(x.type), "floats");
      Array out(x.type, x.shape);
      Math math(out.type);
      std::vector<double> d = step.d;
      for (double& number : d) number = row.of_floats ? number : rounded(x.type, number);
      auto f = [&](double v) { return row.f(v, d); };
      for (size_t i = 0; i < out.at.size(); ++i) {
        Real v = real(x, i);
        double size = std::max(1.0, std::abs(v.v));
        out.at[i] = element(out.type, math.apply(f, v, row.units, row.absolute * size));
      }
      return out;
    };
  }
  rules["clamp_whole"] = [](const Step& step, const Operands& in) {
    Array out = *in[0];
    need(is_int(out.type), "integers");
    for (Element& e : out.at) {
      int64_t low = step.n.at(0), high = step.n.at(1);
      bool u = is_unsigned(out.type);
      if (u ? uint64_t(e.n) < uint64_t(low) : e.n < low) e.n = low;
      if (u ? uint64_t(e.n) > uint64_t(high) : e.n > high) e.n = high;
    }
    return out;
  };
  rules["isinf_side"] = [](const Step& step, const Operands& in) {
    Array out(Type::Bool, in[0]->shape);
    for (size_t i = 0; i < out.at.size(); ++i) {
      const Element& e = in[0]->at[i];
      bool here = is_float(in[0]->type) && std::isinf(e.v) && step.n.at(e.v > 0 ? 0 : 1);
      out.at[i] = integer(Type::Bool, here, e.known());
    }
    return out;
  };
}

// Values made of numbers: full_like, lines, the identity.
void add_making_rules(std::map<std::string, Rule>& rules) {
  for (const char* op : {"full_like", "zeros_like", "ones_like"}) {
    rules[op] = [](const Step& step, const Operands& in) {
      Array out(in[0]->type, in[0]->shape);
      double value = step.op[0] == 'f' ? step.d.at(0) : step.op[0] == 'o';
      for (Element& e : out.at) e.v = value, e.n = wrapped(out.type, int64_t(value));
      return out;
    };
  }
  rules["arange"] = [](const Step& step, const Operands&) {
    int64_t first = step.n.at(0), stop = step.n.at(1), by = step.n.at(2);
    need(by > 0 && stop >= first, "a line");
    Array out(type_named(step.text), {(stop - first + by - 1) / by});
    for (size_t i = 0; i < out.at.size(); ++i) {
      int64_t n = first + int64_t(i) * by;
      out.at[i].v = double(n), out.at[i].n = wrapped(out.type, n);
    }
    return out;
  };
  rules["linspace"] = [](const Step& step, const Operands&) {
    int64_t n = step.n.at(0);
    Array out(type_named(step.text), {n});
    need(n > 0 && is_float(out.type), "a line");
    double by = (step.d.at(1) - step.d.at(0)) / double(std::max<int64_t>(1, n - 1));
    for (size_t i = 0; i < out.at.size(); ++i)
      out.at[i] = element(out.type, {step.d[0] + double(i) * by, 1e-14});
    return out;
  };
  rules["eye"] = [](const Step& step, const Operands&) {
    Array out(type_named(step.text), {step.n.at(0), step.n.at(1)});
    each_place(out.shape, [&](const Shape& place, size_t at) {
      out.at[at].n = place[0] == place[1], out.at[at].v = double(out.at[at].n);
    });
    return out;
  };
  rules["meshgrid"] = [](const Step& step, const Operands& in) {
    need(in.size() == 2 && in[0]->rank() == 1 && in[1]->rank() == 1, "lists");
    int64_t which = step.n.at(0);
    bool xy = step.n.at(1);
    Shape shape = {in[0]->shape[0], in[1]->shape[0]};
    if (xy) std::swap(shape[0], shape[1]);
    Array out(in[size_t(which)]->type, shape);
    each_place(shape, [&](const Shape& place, size_t at) {
      out.at[at] = in[size_t(which)]->at[size_t(place[size_t(xy ? 1 - which : which)])];
    });
    return out;
  };
}

}  // namespace

void add_elementwise_rules(std::map<std::string, Rule>& rules) {
  for (const Unary& row : kFloatFunctions) {
    rules[row.op] = [&row](const Step&, const Operands& in) { return float_unary(row, *in[0]); };
  }
  for (const Unary& row : kSameType) {
    rules[row.op] = [&row](const Step&, const Operands& in) {
      return same_type_unary(row, *in[0]);
    };
  }
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum", "pow", "copysign",
                         "logaddexp", "mod", "fmod", "floor_div", "div_trunc", "bitwise_and",
                         "bitwise_or", "bitwise_xor", "lshift", "rshift"}) {
    rules[op] = binary;
  }
  for (const char* op : {"eq", "ne", "lt", "gt", "le", "ge"}) rules[op] = comparison;
  add_functions_of_numbers(rules);
  for (const auto& [op, method] : kMethodOf) rules[op] = by_operator;
  rules["isclose"] = isclose;
  rules["isnan"] = [](const Step&, const Operands& in) {
    return test_of(*in[0], [](double x) { return std::isnan(x); });
  };
  rules["isinf"] = [](const Step&, const Operands& in) {
    return test_of(*in[0], [](double x) { return std::isinf(x); });
  };
  rules["isfinite"] = [](const Step&, const Operands& in) {
    return test_of(*in[0], [](double x) { return std::isfinite(x); });
  };
  rules["logical_not"] = [](const Step&, const Operands& in) {
    Array out = converted(*in[0], Type::Bool);
    for (Element& e : out.at) e.n = !e.n;
    return out;
  };
  rules["bitwise_not"] = [](const Step&, const Operands& in) {
    need(!is_float(in[0]->type), "integers");
    Array out = *in[0];
    for (Element& e : out.at) e.n = out.type == Type::Bool ? !e.n : wrapped(out.type, ~e.n);
    return out;
  };
  rules["where"] = [](const Step&, const Operands& in) { return where(*in[0], *in[1], *in[2]); };
  rules["masked_fill"] = [](const Step& step, const Operands& in) {
    return where(*in[1], number(*in[0], step), *in[0]);
  };
  rules["lerp"] = [](const Step&, const Operands& in) {
    Type type = promoted(promoted(in[0]->type, in[1]->type), in[2]->type);
    need(in[0]->type == in[1]->type && type == in[0]->type && in[2]->type == type && is_float(type),
         "one float type");
    Shape shape = broadcast(broadcast(in[0]->shape, in[1]->shape), in[2]->shape);
    Array a = expanded(*in[0], shape), b = expanded(*in[1], shape), w = expanded(*in[2], shape),
          out(type, shape);
    Math math(type);
    for (size_t i = 0; i < out.at.size(); ++i) {
      Real x = real(a, i);
      out.at[i] = element(type, math.add(x, math.mul(math.sub(real(b, i), x), real(w, i))));
    }
    return out;
  };
  rules["cast"] = [](const Step& step, const Operands& in) {
    Type type = type_named(step.text);
    need(type != in[0]->type, "the same type");
    return converted(*in[0], type);
  };
  rules["bitcast"] = [](const Step& step, const Operands& in) {
    return bitcast(*in[0], type_named(step.text));
  };
  const std::pair<const char*, Type> kNamedCasts[] = {
      {"to_float", Type::F32},     {"to_double", Type::F64}, {"to_half", Type::F16},
      {"to_bfloat16", Type::BF16}, {"to_int", Type::I32},    {"to_long", Type::I64},
      {"to_short", Type::I16},     {"to_bool", Type::Bool}};
  for (auto [op, type] : kNamedCasts) {
    rules[op] = [type](const Step&, const Operands& in) { return converted(*in[0], type); };
  }
  add_making_rules(rules);
  for (const char* op : {"contiguous", "detach", "clone", "contiguous_backward"}) {
    rules[op] = [](const Step&, const Operands& in) { return *in[0]; };
  }
  rules["shard_like"] = [](const Step&, const Operands& in) {
    need(in[0]->shape == in[1]->shape, "one shape");
    return *in[0];
  };
  rules["shard"] = [](const Step& step, const Operands& in) {
    for (int64_t dim : step.n) need(dim < in[0]->rank(), "dim");
    return *in[0];
  };
  rules["assign"] = [](const Step&, const Operands& in) {
    need(in[0]->type == in[1]->type && broadcast(in[0]->shape, in[1]->shape) == in[0]->shape,
         "assign");
    return expanded(*in[1], in[0]->shape);
  };
  for (const char* op : {"add_assign", "sub_assign", "mul_assign", "div_assign"}) {
    rules[op] = [](const Step& step, const Operands& in) {
      Step same = step;
      same.op = step.op.substr(0, 3);
      Array out = binary(same, in);
      need(out.type == in[0]->type && out.shape == in[0]->shape, "assign");
      return out;
    };
  }
}

}  // namespace fuzz
