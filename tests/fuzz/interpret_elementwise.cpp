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
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
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
    {"tanh", [](double x) { return std::tanh(x); }, 16, 4},
    {"asinh", [](double x) { return std::asinh(x); }, 16, 4},
    {"acosh", [](double x) { return std::acosh(x); }, 16, 16},
    {"atanh", [](double x) { return std::atanh(x); }, 32, 4},
    {"erf", [](double x) { return std::erf(x); }, 32, 8},
    {"sigmoid", sigmoid, 16, 0},
    {"logsigmoid", [](double x) { return -softplus(-x); }, 16, 4},
    {"softplus", softplus, 16, 4},
    {"hardswish", [](double x) { return x * clamp(x + 3, 0, 6) / 6; }, 8, 4},
    {"hardsigmoid", [](double x) { return clamp(x / 6 + 0.5, 0, 1); }, 8, 2},
    {"quick_gelu", [](double x) { return x * sigmoid(1.702 * x); }, 32, 4},
    {"gelu", gelu, 32, 8},
    {"gelu_exact", [](double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }, 32,
     8},
    {"silu", [](double x) { return x * sigmoid(x); }, 32, 4},
    {"mish", [](double x) { return x * std::tanh(softplus(x)); }, 64, 8},
    {"softsign", [](double x) { return x / (1 + std::abs(x)); }, 8, 0},
    {"elu", [](double x) { return x > 0 ? x : std::expm1(x); }, 16, 4},
    {"celu", [](double x) { return x > 0 ? x : std::expm1(x); }, 16, 4},
    {"selu", [](double x) { return 1.0507 * (x > 0 ? x : 1.67326 * std::expm1(x)); }, 16, 8},
};

// Functions that keep the type of integers.
const Unary kSameType[] = {
    {"abs", [](double x) { return std::abs(x); }, 0, 0},
    {"sign", sign, 0, 0},
    {"square", [](double x) { return x * x; }, 1, 0},
    {"relu", [](double x) { return x > 0 ? x : 0; }, 0, 0},  // of NaN: 0, as where(x > 0, x, 0)
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
      out.at[i] = element(type, math.sqrt(v));
      continue;
    }
    bool edge = (op == "asin" || op == "acos" || op == "acosh" || op == "atanh") && v.known() &&
                v.e > 0 && std::abs(std::abs(v.v) - 1) <= v.e;
    if ((op == "sin" || op == "cos") && std::abs(v.v) > 1e4) edge = true;
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

double floor_mod(double a, double b) { return a - std::floor(a / b) * b; }

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
       double m = std::max(a, b);
       return std::isinf(m) ? m : m + std::log1p(std::exp(-std::abs(a - b)));
     },
     16, 4},
    {"mod", floor_mod, 2, 0},
    {"fmod", [](double a, double b) { return a - std::trunc(a / b) * b; }, 2, 0},
    {"floor_div", [](double a, double b) { return std::floor(a / b); }, 0, 0},
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
  if (u) return op == "floor_div" ? int64_t(x / y) : int64_t(x % y);
  if (b == -1) return op == "floor_div" ? int64_t(-x) : 0;
  int64_t quotient = a / b, rest = a % b;
  if (op == "fmod") return rest;
  bool above = rest != 0 && (rest < 0) != (b < 0);
  return op == "floor_div" ? quotient - above : above ? rest + b : rest;
}

Array binary(const Step& step, const Operands& in) {
  auto [a, b] = matched(step, in);
  std::string op = step.op;
  if ((op == "div" || op == "copysign" || op == "logaddexp") && !is_float(a.type)) {
    a = converted(a, float_type(a.type)), b = converted(b, a.type);
  }
  if ((op == "floor_div" || op == "mod" || op == "fmod" || op == "pow") && a.type == Type::Bool)
    throw Invalid("bools");
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
    if (op == "mod" || op == "fmod" || op == "floor_div") {
      if (y.known() && std::abs(y.v) <= y.e) {
        out.at[i] = element(a.type, kAnything);
        continue;
      }
      // The quotient is rounded before its floor is taken.
      x.e = std::max(x.e, (a.type == Type::F64 ? 1e-15 : 2.5e-7) * std::abs(x.v));
      absolute += 2 * (std::abs(x.v) + std::abs(y.v));
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
  if (!(x.n == y.n && x.v == y.v && x.known() && y.known())) out.err = kUnknown;
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
    // Which NaN it is, and which of neighbouring floats, shows in the bits.
    if (e.err != 0 || (is_float(x.type) && std::isnan(e.v))) out.at[i].err = kUnknown;
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
  for (const char* op :
       {"add", "sub", "mul", "div", "maximum", "minimum", "pow", "copysign", "logaddexp", "mod",
        "fmod", "floor_div", "bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift"}) {
    rules[op] = binary;
  }
  for (const char* op : {"eq", "ne", "lt", "gt", "le", "ge"}) rules[op] = comparison;
  rules["leaky_relu"] = [](const Step&, const Operands& in) {
    need(is_float(in[0]->type), "floats");
    Array out(in[0]->type, in[0]->shape);
    Math math(in[0]->type);
    double slope = rounded(in[0]->type, 0.01);
    auto f = [slope](double x) { return x < 0 ? x * slope : x; };
    for (size_t i = 0; i < out.at.size(); ++i) {
      out.at[i] = element(out.type, math.apply(f, real(*in[0], i), 2));
    }
    return out;
  };
  rules["clamp"] = [](const Step& step, const Operands& in) {
    need(is_float(in[0]->type), "floats");
    Array out(in[0]->type, in[0]->shape);
    double low = rounded(out.type, step.d.at(0)), high = rounded(out.type, step.d.at(1));
    auto f = [=](double x) { return clamp(x, low, high); };
    for (size_t i = 0; i < out.at.size(); ++i) {
      out.at[i] = element(out.type, Math(out.type).apply(f, real(*in[0], i), 0));
    }
    return out;
  };
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
  for (const char* op : {"contiguous", "detach", "clone"}) {
    rules[op] = [](const Step&, const Operands& in) { return *in[0]; };
  }
  rules["shard"] = [](const Step& step, const Operands& in) {
    for (int64_t dim : step.n) need(dim < in[0]->rank(), "dim");
    return *in[0];
  };
  rules["assign"] = [](const Step&, const Operands& in) {
    need(in[0]->type == in[1]->type && broadcast(in[0]->shape, in[1]->shape) == in[0]->shape,
         "assign");
    return expanded(*in[1], in[0]->shape);
  };
  rules["add_assign"] = [](const Step& step, const Operands& in) {
    Step add = step;
    add.op = "add";
    Array out = binary(add, in);
    need(out.type == in[0]->type && out.shape == in[0]->shape, "assign");
    return out;
  };
}

}  // namespace fuzz
