// Rules of reductions, norms, scans and orders.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

struct Groups {
  Shape kept;                              // with the reduced axes as ones
  Shape shape;                             // of the result
  std::vector<std::vector<size_t>> lines;  // the elements of each, in order
};

// n: keepdim, then the axes; none means all.
Groups groups(const Array& x, bool keep, Shape axes) {
  Groups g;
  std::vector<bool> reduced(x.shape.size(), axes.empty());
  for (int64_t& axis : axes) {
    axis = resolved(axis, x.rank());
    need(!reduced[size_t(axis)], "axis twice");
    reduced[size_t(axis)] = true;
  }
  for (size_t i = 0; i < x.shape.size(); ++i) {
    g.kept.push_back(reduced[i] ? 1 : x.shape[i]);
    if (!reduced[i] || keep) g.shape.push_back(g.kept.back());
  }
  g.lines.resize(size_t(count(g.kept)));
  each_place(x.shape, [&](const Shape& place, size_t at) {
    Shape to = place;
    for (size_t i = 0; i < to.size(); ++i) to[i] = reduced[i] ? 0 : to[i];
    g.lines[linear(to, g.kept)].push_back(at);
  });
  return g;
}
Groups groups(const Step& step, const Array& x) {
  return groups(x, step.n.at(0), Shape(step.n.begin() + 1, step.n.end()));
}
Groups along(const Array& x, int64_t axis) {
  need(x.rank() > 0, "a dim");
  return groups(x, true, {axis});
}

std::vector<Real> reals(const Array& x, const std::vector<size_t>& line) {
  std::vector<Real> out;
  out.reserve(line.size());
  for (size_t i : line) out.push_back(real(x, i));
  return out;
}

bool all_known(const Array& x, const std::vector<size_t>& line) {
  return std::ranges::all_of(line, [&](size_t i) { return x.at[i].known(); });
}

Element largest(const Array& x, const std::vector<size_t>& line, bool smallest) {
  if (!all_known(x, line)) return element(x.type, kAnything);
  Element best = x.at[line[0]];
  if (!is_float(x.type)) {
    for (size_t i : line) {
      int64_t n = x.at[i].n;
      bool less = is_unsigned(x.type) ? uint64_t(n) < uint64_t(best.n) : n < best.n;
      if (n != best.n && less == smallest) best = x.at[i];
    }
    return best;
  }
  double side = smallest ? -1 : 1, low = -INFINITY, high = -INFINITY, v = -INFINITY;
  for (size_t i : line) {
    const Element& e = x.at[i];
    if (std::isnan(e.v)) return element(x.type, {NAN, 0});
    v = std::max(v, side * e.v);
    low = std::max(low, side * e.v - e.err), high = std::max(high, side * e.v + e.err);
  }
  double err = std::isinf(v) ? 0 : std::max(high - v, v - low);
  // Either of 0 and -0 is the largest, but a quotient by it is not the same.
  auto is_zero = [&](bool negative) {
    return
        [&x, negative](size_t i) { return x.at[i].v == 0 && std::signbit(x.at[i].v) == negative; };
  };
  if (v == 0 && std::ranges::any_of(line, is_zero(true)) &&
      std::ranges::any_of(line, is_zero(false)))
    err = std::max(err, std::numeric_limits<double>::denorm_min());
  Element out;
  out.v = side * v, out.err = err;
  return out;
}

Array largest(const Step& step, const Operands& in) {
  Groups g = groups(step, *in[0]);
  Array out(in[0]->type, g.shape);
  for (size_t i = 0; i < g.lines.size(); ++i) {
    need(!g.lines[i].empty(), "nothing to reduce");
    out.at[i] = largest(*in[0], g.lines[i], step.op == "min");
  }
  return out;
}

// The order of elements: `less` says that i comes before j, `sure` that no error changes that.
struct Order {
  const Array& x;
  bool descending;
  bool sure(size_t i, size_t j) const {
    const Element &a = x.at[i], &b = x.at[j];
    if (!a.known() || !b.known()) return false;
    return a.err + b.err == 0 || std::abs(a.v - b.v) > a.err + b.err;
  }
  bool less(size_t i, size_t j) const {
    const Element &a = x.at[i], &b = x.at[j];
    if (is_unsigned(x.type))
      return descending ? uint64_t(b.n) < uint64_t(a.n) : uint64_t(a.n) < uint64_t(b.n);
    if (!is_float(x.type)) return descending ? b.n < a.n : a.n < b.n;
    // NaN is larger than everything.
    bool nan_a = std::isnan(a.v), nan_b = std::isnan(b.v);
    if (descending) return nan_b ? false : nan_a ? true : b.v < a.v;
    return nan_a ? false : nan_b ? true : a.v < b.v;
  }
};

std::vector<size_t> sorted(const Array& x, std::vector<size_t> line, bool descending, bool& sure) {
  Order order{x, descending};
  std::stable_sort(line.begin(), line.end(), [&](size_t i, size_t j) { return order.less(i, j); });
  sure = all_known(x, line);
  // Neighbours decide, as long as all errors are about the same; one wide one makes all unsure.
  double widest = 0;
  for (size_t i : line) widest = std::max(widest, x.at[i].err);
  for (size_t k = 0; k + 1 < line.size() && sure; ++k) {
    const Element &a = x.at[line[k]], &b = x.at[line[k + 1]];
    sure = widest == 0 || std::abs(a.v - b.v) > 2 * widest;
  }
  return line;
}

// n: dim, descending, how many.
Array order(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  need(x.rank() > 0, "a dim");
  int64_t axis = resolved(step.n.at(0), x.rank()), k = step.n.at(2), n = x.shape[size_t(axis)];
  need(k >= 1 && k <= n, "k");
  bool descending = step.n.at(1), places = step.op.ends_with("_order") || step.op == "argsort";
  Groups g = along(x, axis);
  Shape shape = x.shape;
  shape[size_t(axis)] = k;
  Array out(places ? Type::I32 : x.type, shape), whole(out.type, x.shape);
  for (const auto& line : g.lines) {
    bool sure = true;
    std::vector<size_t> by = sorted(x, line, descending, sure);
    double widest = 0;
    for (size_t i : line) widest = std::max(widest, x.at[i].err);
    for (size_t j = 0; j < line.size(); ++j) {
      Element& to = whole.at[line[j]];
      if (places) {
        to = integer(Type::I32, std::ranges::find(line, by[j]) - line.begin(), sure);
      } else {
        to = x.at[by[j]];
        if (!sure) to.err = widest;
      }
    }
  }
  size_t next = 0;
  each_place(x.shape, [&](const Shape& place, size_t at) {
    if (place[size_t(axis)] < k) {
      out.at[linear(place, shape)] = whole.at[at];
      ++next;
    }
  });
  return out;
}

// n: whether all, keepdim, axis.
Array best_place(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  bool all = step.n.at(0), keep = step.n.at(1);
  Groups g = groups(x, keep, all ? Shape{} : Shape{step.n.at(2)});
  Array out(Type::I32, g.shape);
  for (size_t i = 0; i < g.lines.size(); ++i) {
    const auto& line = g.lines[i];
    need(!line.empty(), "nothing");
    Order less{x, step.op == "argmax"};
    size_t best = 0;
    bool known = all_known(x, line);
    for (size_t k = 1; k < line.size(); ++k) {
      bool nan_best = is_float(x.type) && std::isnan(x.at[line[best]].v),
           nan = is_float(x.type) && std::isnan(x.at[line[k]].v);
      if (nan_best) break;
      if (nan || less.less(line[k], line[best])) best = k;
    }
    for (size_t k = 0; k < line.size() && known; ++k) {
      if (k != best && !std::isnan(x.at[line[best]].v)) known = less.sure(line[k], line[best]);
    }
    out.at[i] = integer(Type::I32, int64_t(best), known);
  }
  return out;
}

Array sum(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  Groups g = groups(step, x);
  bool product = step.op == "prod", mean = step.op == "mean";
  Type type = mean ? float_type(x.type) : product ? x.type : sum_type(x.type);
  Array out(type, g.shape);
  Math math(type);
  for (size_t i = 0; i < g.lines.size(); ++i) {
    const auto& line = g.lines[i];
    if (is_float(type)) {
      std::vector<Real> terms = reals(x, line);
      Real total = product ? math.product(terms) : math.sum(terms);
      if (mean) total = math.div(total, {double(line.size()), 0});
      out.at[i] = element(type, total);
      continue;
    }
    uint64_t total = product ? 1 : 0;
    for (size_t k : line) {
      uint64_t n = uint64_t(x.at[k].n);
      total = !product ? total + n : x.type == Type::Bool ? total & n : total * n;
    }
    out.at[i] = integer(type, int64_t(total), all_known(x, line));
  }
  return out;
}

Array any_all(const Step& step, const Operands& in) {
  Array x = converted(*in[0], Type::Bool);
  Groups g = groups(step, x);
  Array out(Type::Bool, g.shape);
  bool any = step.op == "any";
  for (size_t i = 0; i < g.lines.size(); ++i) {
    bool value = !any, known = true, decided = false;
    for (size_t k : g.lines[i]) {
      const Element& e = x.at[k];
      if (!e.known())
        known = false;
      else if (bool(e.n) == any)
        value = any, decided = true;
    }
    out.at[i] = integer(Type::Bool, value, known || decided);
  }
  return out;
}

struct Moments {
  Real mean, variance;
  std::vector<Real> centred;
};
Moments moments(const Math& math, const std::vector<Real>& terms, double divisor) {
  Moments m;
  m.mean = math.div(math.sum(terms), {double(terms.size()), 0});
  std::vector<Real> squares;
  for (Real x : terms) {
    m.centred.push_back(math.sub(x, m.mean));
    squares.push_back(math.mul(m.centred.back(), m.centred.back()));
  }
  m.variance = math.div(math.sum(squares), {divisor, 0});
  return m;
}

Array variance(const Array& x, const Groups& g, int64_t correction, bool root) {
  Type type = float_type(x.type);
  Array out(type, g.shape);
  Math math(type);
  for (size_t i = 0; i < g.lines.size(); ++i) {
    double divisor = double(g.lines[i].size()) - double(correction);
    need(divisor > 0, "one element has no variance");
    Real v = moments(math, reals(x, g.lines[i]), divisor).variance;
    out.at[i] = element(type, root ? math.sqrt(v) : v);
  }
  return out;
}

// n: keepdim, correction, then the axes.
Array one_of_moments(const Step& step, const Operands& in) {
  Step mean = step;
  mean.op = "mean", mean.n.erase(mean.n.begin() + 1);
  Array both = variance(*in[0], groups(mean, *in[0]), step.n.at(1), step.op.starts_with("std"));
  return step.op.ends_with("first") ? both : interpret(mean, in);
}

// In another type, which also is the result's.
Array reduced_as(const Step& step, const Operands& in) {
  Step same = step;
  same.op = step.op.substr(0, step.op.find('_'));
  if (step.op.starts_with("log")) same.op = "log_softmax";
  Array x = converted(*in[0], type_named(step.text));
  need(x.type != Type::Bool, "bools");
  Array out = interpret(same, {&x});
  return converted(out, x.type);  // integers wrap
}

Array normalize(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  double p = step.d.at(0);
  need(is_float(x.type) && p >= 1, "floats");
  Array out(x.type, x.shape);
  Math math(x.type);
  for (const auto& line : along(x, step.n.at(0)).lines) {
    std::vector<Real> powers;
    auto power = [p](double v) { return std::pow(std::abs(v), p); };
    auto root = [p](double v) { return std::pow(v, 1 / p); };
    for (size_t i : line) powers.push_back(math.apply(power, real(x, i), 32));
    Real total = math.sum(powers);
    // At zero the slope of the root is infinite.
    bool vague = total.known() && total.e > 0 && total.v <= total.e;
    Real norm = p == 1 ? total : vague ? kAnything : math.apply(root, total, 32);
    norm = math.maximum(norm, {1e-12, 1e-19});
    for (size_t i : line) out.at[i] = element(x.type, math.div(real(x, i), norm));
  }
  return out;
}

// n: the axes.
Array layernorm(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  Type type = float_type(x.type);
  Array out(type, x.shape);
  Math math(type);
  double eps = step.d.empty() ? 1e-5 : step.d[0];
  for (const auto& line : groups(x, true, step.n).lines) {
    Moments m = moments(math, reals(x, line), double(line.size()));
    Real root = math.sqrt(math.add(m.variance, {eps, 1e-7 * eps}));
    for (size_t k = 0; k < line.size(); ++k) {
      out.at[line[k]] = element(type, math.div(m.centred[k], root));
    }
  }
  return out;
}

// softmax, softmin, log_softmax along a dim; logsumexp of groups.
struct Exponents {
  Real top, total;
  std::vector<Real> shifted, powers;
};
Exponents exponents(const Math& math, std::vector<Real> terms) {
  Exponents out;
  out.top = {-INFINITY, 0};
  for (Real x : terms) {
    if (!x.known())
      out.top = kAnything;
    else if (out.top.known())
      out.top = {std::max(out.top.v, x.v), std::max(out.top.e, x.e)};
    if (std::isnan(x.v)) out.top.v = NAN;
  }
  if (std::isnan(out.top.v)) out.top = {NAN, 0};
  for (Real x : terms) {
    // The number subtracted is the same for all, so its error does not count.
    out.shifted.push_back(math.sub(x, {out.top.v, out.top.known() ? 0 : kUnknown}));
    out.powers.push_back(math.exp(out.shifted.back()));
  }
  out.total = math.sum(out.powers);
  return out;
}

Array softmax(const Step& step, const Operands& in) {
  Array x = *in[0];
  if (step.op == "softmin") {
    Step neg;
    neg.op = "neg";
    x = interpret(neg, {&x});
  }
  Type type = float_type(x.type);
  Array out(type, x.shape);
  Math math(type);
  for (const auto& line : along(x, step.n.at(0)).lines) {
    Exponents e = exponents(math, reals(x, line));
    for (size_t k = 0; k < line.size(); ++k) {
      Real value = step.op == "log_softmax" ? math.sub(e.shifted[k], math.log(e.total))
                                            : math.div(e.powers[k], e.total);
      out.at[line[k]] = element(type, value);
    }
  }
  return out;
}

Real logsumexp(const Math& math, const std::vector<Real>& terms) {
  for (Real x : terms) {
    if (!x.known()) return kAnything;
    if (std::isnan(x.v)) return {NAN, 0};
  }
  Exponents e = exponents(math, terms);
  if (std::isinf(e.top.v)) return {e.top.v, 0};
  return math.add(math.log(e.total), {e.top.v, 0});
}

Array logsumexp(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  Groups g = groups(step, x);
  Array out(float_type(x.type), g.shape);
  for (size_t i = 0; i < g.lines.size(); ++i) {
    out.at[i] = element(out.type, logsumexp(Math(out.type), reals(x, g.lines[i])));
  }
  return out;
}

// Each element is the reduction of those up to it.
Array scan(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  const std::string& op = step.op;
  bool places = op.ends_with("_places"),
       best = op.starts_with("cummax") || op.starts_with("cummin");
  Type type = places                 ? Type::I32
              : op == "cumsum"       ? sum_type(x.type)
              : op == "logcumsumexp" ? float_type(x.type)
                                     : x.type;
  need(x.rank() > 0, "a dim");
  need(!(best && is_float(x.type) && places) ||
           std::ranges::none_of(x.at, [](const Element& e) { return std::isnan(e.v); }),
       "places beside NaN");
  Array out(type, x.shape);
  Math math(type);
  for (const auto& line : along(x, step.n.at(0)).lines) {
    std::vector<size_t> seen;
    std::vector<Real> terms;
    uint64_t total = op == "cumprod" ? 1 : 0;
    bool known = true;
    int64_t place = 0;
    for (size_t k = 0; k < line.size(); ++k) {
      size_t at = line[k];
      seen.push_back(at);
      known = known && x.at[at].known();
      if (best) {
        Element top = largest(x, seen, op.starts_with("cummin"));
        if (!places) {
          out.at[at] = top;
          continue;
        }
        // A maximum that is reached again does not move its place.
        bool moved = k == 0;
        if (k > 0) {
          std::vector<size_t> before(seen.begin(), seen.end() - 1);
          Element last = largest(x, before, op.starts_with("cummin"));
          moved = is_float(x.type) ? top.v != last.v : top.n != last.n;
          if (last.err > 0 && std::abs(x.at[at].v - last.v) <= last.err + x.at[at].err)
            known = false;
        }
        if (moved) place = int64_t(k);
        out.at[at] = integer(Type::I32, place, known);
      } else if (is_float(type)) {
        terms.push_back(real(x, at));
        out.at[at] = element(type, op == "cumsum"    ? math.sum(terms)
                                   : op == "cumprod" ? math.product(terms)
                                                     : logsumexp(math, terms));
      } else {
        uint64_t n = uint64_t(x.at[at].n);
        if (op == "cumsum")
          total += n;
        else if (x.type == Type::Bool)
          total &= n;
        else
          total *= n;
        out.at[at] = integer(type, int64_t(total), known);
      }
    }
  }
  return out;
}

}  // namespace

void add_reduction_rules(std::map<std::string, Rule>& rules) {
  for (const char* op : {"sum", "mean", "prod"}) rules[op] = sum;
  for (const char* op : {"max", "min"})
    rules[op] = [](const Step& s, const Operands& in) { return largest(s, in); };
  for (const char* op : {"any", "all"}) rules[op] = any_all;
  for (const char* op : {"var", "std"}) {
    rules[op] = [](const Step& s, const Operands& in) {
      return variance(*in[0], groups(s, *in[0]), 1, s.op == "std");
    };
  }
  for (const char* op : {"var_mean_first", "var_mean_second", "std_mean_first", "std_mean_second"})
    rules[op] = one_of_moments;
  for (const char* op : {"sum_as", "prod_as", "softmax_as", "log_softmax_as"})
    rules[op] = reduced_as;
  rules["normalize"] = normalize;
  rules["layernorm_dims"] = layernorm;
  for (const char* op : {"softmax", "softmin", "log_softmax"}) rules[op] = softmax;
  for (const char* op : {"argmax", "argmin"}) rules[op] = best_place;
  for (const char* op : {"sort_values", "sort_order", "topk_values", "topk_order", "argsort"})
    rules[op] = order;
  for (const char* op :
       {"cumsum", "cumprod", "cummax", "cummin", "cummax_places", "cummin_places", "logcumsumexp"})
    rules[op] = scan;
  rules["layernorm"] = layernorm;
  rules["logsumexp"] = [](const Step& s, const Operands& in) { return logsumexp(s, in); };
}

}  // namespace fuzz
