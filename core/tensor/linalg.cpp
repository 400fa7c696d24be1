// Decompositions. QR and SVD realize their input and run on the host in f64, one matrix after the
// other: they are for small matrices, have no gradient and cannot be captured.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

// Row-major, m by n.
struct Matrix {
  int64_t m, n;
  std::vector<double> data;
  Matrix(int64_t rows, int64_t columns)
      : m(rows), n(columns), data(static_cast<size_t>(rows * columns)) {}
  double& operator()(int64_t i, int64_t j) { return data[static_cast<size_t>(i * n + j)]; }
  double operator()(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * n + j)]; }
};

Matrix identity(int64_t n) {
  Matrix out(n, n);
  for (int64_t i = 0; i < n; ++i) out(i, i) = 1;
  return out;
}

Matrix transposed(const Matrix& a) {
  Matrix out(a.n, a.m);
  for (int64_t i = 0; i < a.m; ++i) {
    for (int64_t j = 0; j < a.n; ++j) out(j, i) = a(i, j);
  }
  return out;
}

// The exponent of the power of two by which to divide so that squares of these numbers neither vanish
// nor become infinite. Dividing by it changes no bit of a quotient that is a normal number.
int exponent_of(double largest) {
  return largest == 0 || !std::isfinite(largest) ? 0 : std::ilogb(largest);
}

// a becomes R; returns the full Q. Householder reflections, each of its column divided by a power of two.
Matrix reflect_to_triangle(Matrix& a) {
  Matrix q = identity(a.m);
  std::vector<double> v(static_cast<size_t>(a.m));
  for (int64_t k = 0; k < std::min(a.m - 1, a.n); ++k) {
    double largest = 0, norm = 0;
    for (int64_t i = k; i < a.m; ++i) largest = std::fmax(largest, std::abs(a(i, k)));
    const int exponent = exponent_of(largest);
    for (int64_t i = k; i < a.m; ++i) {
      v[i] = std::ldexp(a(i, k), -exponent);
      norm += v[i] * v[i];
    }
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    v[k] -= v[k] > 0 ? -norm : norm;
    double length = 0;
    for (int64_t i = k; i < a.m; ++i) length += v[i] * v[i];
    if (length == 0) continue;
    for (int64_t j = 0; j < a.n; ++j) {
      double along = 0;
      for (int64_t i = k; i < a.m; ++i) along += v[i] * a(i, j);
      for (int64_t i = k; i < a.m; ++i) a(i, j) -= 2 * along / length * v[i];
    }
    for (int64_t j = 0; j < a.m; ++j) {
      double along = 0;
      for (int64_t i = k; i < a.m; ++i) along += v[i] * q(j, i);
      for (int64_t i = k; i < a.m; ++i) q(j, i) -= 2 * along / length * v[i];
    }
    for (int64_t i = k + 1; i < a.m; ++i) a(i, k) = 0;
  }
  return q;
}

// Rotates pairs of columns of a (m >= n) until all are orthogonal; v collects the rotations.
Matrix orthogonalize_columns(Matrix& a) {
  Matrix v = identity(a.n);
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool rotated = false;
    for (int64_t p = 0; p < a.n; ++p) {
      for (int64_t q = p + 1; q < a.n; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (int64_t i = 0; i < a.m; ++i)
          pp += a(i, p) * a(i, p), qq += a(i, q) * a(i, q), pq += a(i, p) * a(i, q);
        if (std::abs(pq) <= 1e-15 * std::sqrt(pp * qq) || pq == 0) continue;
        rotated = true;
        double zeta = (qq - pp) / (2 * pq),
               t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        double c = 1 / std::sqrt(1 + t * t), s = c * t;
        auto rotate = [&](Matrix& x) {
          for (int64_t i = 0; i < x.m; ++i) {
            double xp = x(i, p), xq = x(i, q);
            x(i, p) = c * xp - s * xq, x(i, q) = s * xp + c * xq;
          }
        };
        rotate(a), rotate(v);
      }
    }
    if (!rotated) break;
  }
  return v;
}

struct HostSvd {
  Matrix u, v;  // columns are the vectors
  std::vector<double> s;
};

// Of a with m >= n; u has all m columns.
HostSvd decompose(Matrix a) {
  double largest = 0;
  for (double x : a.data) largest = std::fmax(largest, std::abs(x));
  const int exponent = exponent_of(largest);
  for (double& x : a.data) x = std::ldexp(x, -exponent);
  Matrix v = orthogonalize_columns(a);
  std::vector<double> s(static_cast<size_t>(a.n));
  for (int64_t j = 0; j < a.n; ++j) {
    for (int64_t i = 0; i < a.m; ++i) s[j] += a(i, j) * a(i, j);
    s[j] = std::sqrt(s[j]);
  }
  std::vector<int64_t> order(s.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t x, int64_t y) { return s[x] > s[y]; });
  HostSvd out{Matrix(a.m, a.m), Matrix(a.n, a.n), {}};
  Matrix columns(a.m, a.n);
  double tiny = s.empty() ? 0 : s[order[0]] * 1e-14;
  for (int64_t j = 0; j < a.n; ++j) {
    out.s.push_back(std::ldexp(s[order[j]], exponent));
    for (int64_t i = 0; i < a.n; ++i) out.v(i, j) = v(i, order[j]);
    for (int64_t i = 0; i < a.m; ++i)
      columns(i, j) = s[order[j]] > tiny ? a(i, order[j]) / s[order[j]] : 0;
  }
  // The columns found, and whatever completes them: a reflection keeps a unit column up to its
  // sign.
  Matrix r = columns;
  out.u = reflect_to_triangle(r);
  for (int64_t j = 0; j < a.n; ++j) {
    if (s[order[j]] <= tiny) continue;
    for (int64_t i = 0; i < a.m; ++i) out.u(i, j) = columns(i, j);
  }
  return out;
}

struct Batch {
  Dims lead;
  int64_t m, n;
  std::vector<Matrix> matrices;
};

// Of one matrix in f64 that is 2 GiB, and days of work.
constexpr int64_t kMostRows = int64_t{1} << 14;
constexpr int64_t kMostElements = int64_t{1} << 30;

Batch matrices_of(const Tensor& x) {
  if (x.ndim() < 2) fail(fmt::format("needs at least two dims, not {}", x.describe()));
  if (!is_float(x.dtype())) fail(fmt::format("needs floats, not {}", x.describe()));
  Dims shape = x.shape();
  int64_t m = x.shape(-2), n = x.shape(-1), side = std::max(m, n),
          count = product(DimSpan(shape).first(shape.size() - 2));
  if (side > kMostRows || multiply_sizes(count, 3 * side * side) > kMostElements) {
    fail(
        fmt::format("{} is too large for a decomposition on the host: at most {} rows and columns, "
                    "and {} elements in all results",
                    x.describe(), kMostRows, kMostElements));
  }
  Batch out{Dims(shape.begin(), shape.end() - 2), x.shape(-2), x.shape(-1), {}};
  std::vector<double> all = x.to_vector<double>();
  for (int64_t b = 0; b < product(out.lead); ++b) {
    Matrix a(out.m, out.n);
    std::copy_n(all.begin() + b * out.m * out.n, out.m * out.n, a.data.begin());
    out.matrices.push_back(std::move(a));
  }
  return out;
}

void append(std::vector<double>& all, const Matrix& a, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) all.push_back(a(i, j));
  }
}

Tensor tensor_of(const std::vector<double>& all, Dims lead, const Dims& last, DType dtype) {
  lead.insert(lead.end(), last.begin(), last.end());
  return Tensor(all, lead).cast(dtype);
}

}  // namespace

std::pair<Tensor, Tensor> Tensor::qr(Caller caller) const {
  Call call("qr", caller);
  Batch batch = matrices_of(*this);
  std::vector<double> q, r;
  for (Matrix& a : batch.matrices) {
    append(q, reflect_to_triangle(a), batch.m, batch.m);
    append(r, a, batch.m, batch.n);
  }
  return {tensor_of(q, batch.lead, {batch.m, batch.m}, dtype()),
          tensor_of(r, batch.lead, {batch.m, batch.n}, dtype())};
}

Tensor::Svd Tensor::svd(bool full_matrices, Caller caller) const {
  Call call("svd", caller);
  Batch batch = matrices_of(*this);
  int64_t k = std::min(batch.m, batch.n), left = full_matrices ? batch.m : k,
          right = full_matrices ? batch.n : k;
  std::vector<double> u, s, vt;
  for (const Matrix& a : batch.matrices) {
    bool wide = a.m < a.n;
    HostSvd d = decompose(wide ? transposed(a) : a);
    append(u, wide ? d.v : d.u, batch.m, left);
    append(vt, transposed(wide ? d.u : d.v), right, batch.n);
    s.insert(s.end(), d.s.begin(), d.s.end());
  }
  return {tensor_of(u, batch.lead, {batch.m, left}, dtype()),
          tensor_of(s, batch.lead, {k}, dtype()),
          tensor_of(vt, batch.lead, {right, batch.n}, dtype())};
}

// Each step is several nodes of the graph.
constexpr int64_t kMostSteps = 1000;

// Steps of X <- a X + b (X X') X + c (X X')^2 X..., which drive the singular values of X to one.
Tensor Tensor::newton_schulz(int64_t steps, const std::vector<double>& coefficients, double eps,
                             Caller caller) const {
  Call call("newton_schulz", caller);
  if (ndim() < 2) fail(fmt::format("needs at least two dims, not {}", describe()));
  if (coefficients.empty()) fail("no coefficients");
  if (steps < 0 || steps > kMostSteps)
    fail(fmt::format("{} steps; between 0 and {} are possible", steps, kMostSteps));
  // Squares of what 16 bits hold, or whole numbers, need not be among what these hold.
  const DType type = is_float(dtype()) ? dtype() : default_float();
  const Tensor wide = cast(accumulator(type));
  Tensor x = wide.div(wide.square().sum({-2, -1}, true).sqrt().add(eps)).cast(type);
  bool tall = shape(-2) > shape(-1);
  if (tall) x = x.transpose(-2, -1);
  for (int64_t i = 0; i < steps; ++i) {
    Tensor gram = x.matmul(x.transpose(-2, -1)), power = x, next = x * coefficients[0];
    for (size_t j = 1; j < coefficients.size(); ++j) {
      power = gram.matmul(power);
      next = next + power * coefficients[j];
    }
    x = next;
  }
  return tall ? x.transpose(-2, -1) : x;
}

}  // namespace tinyshard
