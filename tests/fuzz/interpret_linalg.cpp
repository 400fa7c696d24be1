// Rules of decompositions. Several factors are right, so programs hold what the factors fulfil:
// their product is the matrix, they are orthogonal or triangular; only singular values are
// compared.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/interpreter.h"

namespace fuzz {
namespace {

// Elements that are computed from a whole matrix, whose size is `norm`.
Element approximate(Type type, double v, double norm) {
  double eps = type == Type::F64   ? 1e-12
               : type == Type::F32 ? 1e-6
               : type == Type::F16 ? 2e-3
                                   : 2e-2;
  Element e;
  e.v = v, e.err = 16 * eps * std::max(norm, 1e-30);
  // Below the smallest normal number a factor is rounded by steps that do not shrink with it: of
  // f16 6e-8, as large as such an element may be.
  if (type == Type::F16) e.err += std::ldexp(8, -24);
  return e;
}

struct Matrices {
  Shape lead;
  int64_t m, n, number;

  explicit Matrices(const Array& x) {
    need(x.rank() >= 2 && is_float(x.type), "matrices");
    lead = Shape(x.shape.begin(), x.shape.end() - 2);
    m = x.shape[x.shape.size() - 2], n = x.shape.back(), number = count(lead);
    for (const Element& e : x.at) need(e.known() && std::isfinite(e.v), "finite numbers");
  }
  Shape with(std::initializer_list<int64_t> last) const {
    Shape shape = lead;
    shape.insert(shape.end(), last);
    return shape;
  }
  double norm(const Array& x, int64_t k) const {
    double sum = 0;
    for (int64_t i = 0; i < m * n; ++i) {
      const Element& e = x.at[size_t(k * m * n + i)];
      sum += (std::abs(e.v) + e.err) * (std::abs(e.v) + e.err);
    }
    return std::sqrt(sum);
  }
};

Array product(const Step&, const Operands& in) {
  const Array& x = *in[0];
  Matrices a(x);
  Array out = x;
  for (size_t i = 0; i < out.at.size(); ++i) {
    double own = x.at[i].err;
    out.at[i] = approximate(x.type, x.at[i].v, a.norm(x, int64_t(i) / (a.m * a.n)));
    out.at[i].err += own;
  }
  return out;
}

Array orthogonal(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  Matrices a(x);
  bool all = step.op[0] == 'q' || step.n.at(0);
  int64_t side = all ? a.m : std::min(a.m, a.n);
  Array out(x.type, a.with({side, side}));
  for (size_t i = 0; i < out.at.size(); ++i) {
    int64_t at = int64_t(i) % (side * side);
    out.at[i] = approximate(x.type, at / side == at % side, 4);
  }
  return out;
}

Array triangle(const Step&, const Operands& in) {
  Matrices a(*in[0]);
  return Array(in[0]->type, a.with({a.m, a.n}));
}

// Eigenvalues of the matrix times its transpose, by rotations.
std::vector<double> singular_values(std::vector<std::vector<double>> g) {
  size_t n = g.size();
  for (int sweep = 0; sweep < 40; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (g[p][q] == 0) continue;
        double theta = (g[q][q] - g[p][p]) / (2 * g[p][q]);
        double t = std::copysign(1.0, theta) / (std::abs(theta) + std::hypot(theta, 1.0));
        double c = 1 / std::hypot(t, 1.0), s = t * c;
        for (size_t i = 0; i < n; ++i) {
          double a = g[i][p], b = g[i][q];
          g[i][p] = c * a - s * b, g[i][q] = s * a + c * b;
        }
        for (size_t i = 0; i < n; ++i) {
          double a = g[p][i], b = g[q][i];
          g[p][i] = c * a - s * b, g[q][i] = s * a + c * b;
        }
      }
    }
  }
  std::vector<double> out;
  for (size_t i = 0; i < n; ++i) out.push_back(std::sqrt(std::max(0.0, g[i][i])));
  std::ranges::sort(out, std::greater());
  return out;
}

Array values(const Step&, const Operands& in) {
  const Array& x = *in[0];
  Matrices a(x);
  int64_t k = std::min(a.m, a.n);
  Array out(x.type, a.with({k}));
  for (int64_t b = 0; b < a.number; ++b) {
    auto at = [&](int64_t i, int64_t l) {
      return x.at[size_t(b * a.m * a.n + (a.m <= a.n ? i * a.n + l : l * a.n + i))].v;
    };
    size_t side = size_t(k);
    std::vector<std::vector<double>> g(side, std::vector<double>(side, 0.0));
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        for (int64_t l = 0; l < std::max(a.m, a.n); ++l)
          g[size_t(i)][size_t(j)] += at(i, l) * at(j, l);
      }
    }
    std::vector<double> found = singular_values(std::move(g));
    double norm = a.norm(x, b), own = 0;
    for (int64_t i = 0; i < a.m * a.n; ++i) own += x.at[size_t(b * a.m * a.n + i)].err;
    for (int64_t i = 0; i < k; ++i) {
      Element& e = out.at[size_t(b * k + i)] = approximate(x.type, found[size_t(i)], norm);
      // The root of a rounded square.
      e.err += own + 1e-7 * norm;
    }
  }
  return out;
}

// n: steps. d: coefficients of X, (X X') X and so on.
Array newton_schulz(const Step& step, const Operands& in) {
  need(in[0]->rank() >= 2 && is_float(in[0]->type) && !is_half(in[0]->type), "matrices");
  auto run = [](const char* op, const Operands& of, std::vector<int64_t> n = {}) {
    Step s;
    s.op = op, s.n = std::move(n);
    return interpret(s, of);
  };
  auto number = [&](double v) {
    Array out(in[0]->type, {});
    out.at[0].v = rounded(out.type, v);
    return out;
  };
  Array x = *in[0], squares = run("square", {&x}), sum = run("sum", {&squares}, {1, -2, -1}),
        norm = run("sqrt", {&sum}), eps = number(1e-7);
  norm = run("add", {&norm, &eps});
  x = run("div", {&x, &norm});
  bool tall = x.shape[x.shape.size() - 2] > x.shape.back();
  if (tall) x = run("transpose", {&x}, {-2, -1});
  for (int64_t i = 0; i < step.n.at(0); ++i) {
    Array turned = run("transpose", {&x}, {-2, -1}), gram = run("matmul", {&x, &turned}), power = x,
          factor = number(step.d.at(0)), next = run("mul", {&x, &factor});
    for (size_t j = 1; j < step.d.size(); ++j) {
      power = run("matmul", {&gram, &power});
      factor = number(step.d[j]);
      Array term = run("mul", {&power, &factor});
      next = run("add", {&next, &term});
    }
    x = next;
  }
  return tall ? run("transpose", {&x}, {-2, -1}) : x;
}

}  // namespace

void add_linalg_rules(std::map<std::string, Rule>& rules) {
  for (const char* op : {"qr_product", "svd_product"}) rules[op] = product;
  for (const char* op : {"qr_orthogonal", "svd_orthogonal"}) rules[op] = orthogonal;
  rules["qr_triangle"] = triangle;
  rules["svd_values"] = values;
  rules["newton_schulz"] = newton_schulz;
}

}  // namespace fuzz
