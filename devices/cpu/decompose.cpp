// Householder's QR and the one-sided Jacobi method, on one matrix after the other:
//
//   [3 1]    columns [3 4 0], [1 2 2]: of lengths 5 and 3, 11 along each other
//   [4 2]    rotated by 27 degrees they are orthogonal; their lengths, the larger one first, are
//   [0 2]    the singular values, their directions U, and the rotations V
//
// Matrices that are wider than high are transposed for that, and U and V change places. A value that
// is 1e-14 of the largest one has no direction left: reflections complete U.
#include "devices/cpu/decompose.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/dtype/half.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

// Row-major, m by n, in the scratch memory.
struct Matrix {
  int64_t m, n;
  double* data;
  double& operator()(int64_t i, int64_t j) const { return data[i * n + j]; }
  int64_t size() const { return m * n; }
};

void set_identity(const Matrix& a) {
  std::fill_n(a.data, a.size(), 0.0);
  for (int64_t i = 0; i < std::min(a.m, a.n); ++i) a(i, i) = 1;
}

// The exponent of the power of two by which to divide so that squares of these numbers neither vanish
// nor become infinite. Dividing by it changes no bit of a quotient that is a normal number.
int exponent_of(double largest) {
  return largest == 0 || !std::isfinite(largest) ? 0 : std::ilogb(largest);
}

// a becomes R, q the full Q. Reflections, each of its column divided by a power of two; v has room
// for a column.
void reflect_to_triangle(const Matrix& a, const Matrix& q, double* v) {
  set_identity(q);
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
}

// Rotates pairs of columns of a (m >= n) until all are orthogonal; v collects the rotations.
void orthogonalize_columns(const Matrix& a, const Matrix& v) {
  constexpr int kMostSweeps = 60;
  set_identity(v);
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
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
        auto rotate = [&](const Matrix& x) {
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
}

double loaded(DType dtype, const void* x, int64_t i) {
  switch (dtype) {
    case DType::F64:
      return static_cast<const double*>(x)[i];
    case DType::F32:
      return static_cast<const float*>(x)[i];
    case DType::F16:
    case DType::BF16:
      return narrow_to_f32(dtype, static_cast<const uint16_t*>(x)[i]);
    default:
      return narrow_to_f32(dtype, static_cast<const uint8_t*>(x)[i]);
  }
}

void store(DType dtype, void* to, int64_t i, double value) {
  switch (dtype) {
    case DType::F64:
      static_cast<double*>(to)[i] = value;
      break;
    case DType::F32:
      static_cast<float*>(to)[i] = static_cast<float>(value);
      break;
    case DType::F16:
    case DType::BF16:
      static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(f64_to_narrow(dtype, value));
      break;
    default:
      static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(f64_to_narrow(dtype, value));
      break;
  }
}

bool is_of_qr(const DecomposeArg& arg) {
  return arg.factor == Factor::Q || arg.factor == Factor::R;
}

// The factors of one matrix after the other, computed in one part of the scratch memory.
class Decomposition {
 public:
  static int64_t doubles(const DecomposeSpec& spec, bool qr, bool svd) {
    const int64_t longer = std::max(spec.m, spec.n), shorter = std::min(spec.m, spec.n);
    const int64_t for_qr = spec.m * spec.n + spec.m * spec.m + spec.m;
    // The lengths and the order of columns are as many numbers as there are columns.
    const int64_t for_svd =
        2 * longer * shorter + shorter * shorter + longer * longer + longer + 2 * shorter;
    return std::max(qr ? for_qr : 0, svd ? for_svd : 0);
  }

  Decomposition(const DecomposeSpec& spec, const void* x, std::span<const DecomposeArg> factors,
                void* const* results, double* memory)
      : spec_(spec), x_(x), factors_(factors), results_(results), memory_(memory) {}

  void qr(int64_t matrix) {
    double* room = memory_;
    const Matrix a = taken(room, spec_.m, spec_.n), q = taken(room, spec_.m, spec_.m);
    for (int64_t i = 0; i < a.size(); ++i) a.data[i] = element(matrix, i);
    reflect_to_triangle(a, q, room);
    for (size_t f = 0; f < factors_.size(); ++f) {
      if (is_of_qr(factors_[f])) write(f, matrix, factors_[f].factor == Factor::Q ? q : a);
    }
  }

  void svd(int64_t matrix) {
    const bool wide = spec_.m < spec_.n;
    const int64_t m = std::max(spec_.m, spec_.n), n = std::min(spec_.m, spec_.n);
    double* room = memory_;
    const Matrix a = taken(room, m, n), v = taken(room, n, n);
    double largest = 0;
    for (int64_t i = 0; i < a.m; ++i) {
      for (int64_t j = 0; j < a.n; ++j) {
        a(i, j) = element(matrix, wide ? j * spec_.n + i : i * n + j);
        largest = std::fmax(largest, std::abs(a(i, j)));
      }
    }
    const int exponent = exponent_of(largest);
    for (int64_t i = 0; i < a.size(); ++i) a.data[i] = std::ldexp(a.data[i], -exponent);
    orthogonalize_columns(a, v);
    double* s = taken(room, 1, n).data;
    for (int64_t j = 0; j < n; ++j) {
      s[j] = 0;
      for (int64_t i = 0; i < m; ++i) s[j] += a(i, j) * a(i, j);
      s[j] = std::sqrt(s[j]);
    }
    const std::span<int64_t> order(reinterpret_cast<int64_t*>(taken(room, 1, n).data), size_t(n));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t x, int64_t y) { return s[x] > s[y]; });
    const bool left = asked(wide ? Factor::V : Factor::U);
    const Matrix columns = taken(room, m, n), u = taken(room, m, m);
    if (left) complete_columns(a, s, order, columns, u, room);
    for (size_t f = 0; f < factors_.size(); ++f) {
      switch (factors_[f].factor) {
        case Factor::S:
          for (int64_t j = 0; j < n; ++j) {
            const double value = std::ldexp(s[order[size_t(j)]], exponent);
            store(spec_.dtype, results_[f], matrix * n + j, value);
          }
          break;
        case Factor::U:
          write_vectors(f, matrix, wide ? v : u, wide ? order : std::span<const int64_t>(), false);
          break;
        case Factor::V:
          write_vectors(f, matrix, wide ? u : v, wide ? std::span<const int64_t>() : order, true);
          break;
        default:
          break;
      }
    }
  }

 private:
  static Matrix taken(double*& room, int64_t m, int64_t n) {
    const Matrix a{m, n, room};
    room += m * n;
    return a;
  }

  double element(int64_t matrix, int64_t i) const {
    return loaded(spec_.dtype, x_, matrix * spec_.m * spec_.n + i);
  }

  bool asked(Factor factor) const {
    return std::ranges::any_of(factors_, [&](const DecomposeArg& f) { return f.factor == factor; });
  }

  // u is the directions of the columns of a in that order, and whatever completes them: a reflection
  // keeps a unit column up to its sign.
  static void complete_columns(const Matrix& a, const double* s, std::span<const int64_t> order,
                               const Matrix& columns, const Matrix& u, double* room) {
    const double tiny = order.empty() ? 0 : s[order[0]] * 1e-14;
    for (int64_t j = 0; j < a.n; ++j) {
      const int64_t from = order[size_t(j)];
      for (int64_t i = 0; i < a.m; ++i) columns(i, j) = s[from] > tiny ? a(i, from) / s[from] : 0;
    }
    reflect_to_triangle(columns, u, room);
    for (int64_t j = 0; j < a.n; ++j) {
      const int64_t from = order[size_t(j)];
      if (s[from] <= tiny) continue;
      for (int64_t i = 0; i < a.m; ++i) u(i, j) = a(i, from) / s[from];
    }
  }

  void write(size_t factor, int64_t matrix, const Matrix& a) const {
    for (int64_t i = 0; i < a.size(); ++i)
      store(spec_.dtype, results_[factor], matrix * a.size() + i, a.data[i]);
  }

  // The first of the columns of `vectors`, taken in `order` if there is one; as rows if asked.
  void write_vectors(size_t factor, int64_t matrix, const Matrix& vectors,
                     std::span<const int64_t> order, bool as_rows) const {
    const int64_t length = vectors.m;
    const int64_t count = factors_[factor].full ? length : std::min(spec_.m, spec_.n);
    int64_t at = matrix * count * length;
    auto vector_at = [&](int64_t i, int64_t j) {
      return vectors(i, order.empty() ? j : order[size_t(j)]);
    };
    for (int64_t i = 0; i < (as_rows ? count : length); ++i) {
      for (int64_t j = 0; j < (as_rows ? length : count); ++j)
        store(spec_.dtype, results_[factor], at++, as_rows ? vector_at(j, i) : vector_at(i, j));
    }
  }

  const DecomposeSpec& spec_;
  const void* x_;
  std::span<const DecomposeArg> factors_;
  void* const* results_;
  double* memory_;
};

// How many matrices are decomposed side by side, and what each needs.
struct Parts {
  int64_t count, doubles;
  bool qr, svd;
};

Parts parts_for(const DecomposeSpec& spec, std::span<const DecomposeArg> factors, int threads) {
  constexpr int64_t kMostBytes = int64_t{1} << 30, kLine = 8;
  Parts parts{1, 0, std::ranges::any_of(factors, is_of_qr),
              !std::ranges::all_of(factors, is_of_qr)};
  parts.doubles = (Decomposition::doubles(spec, parts.qr, parts.svd) + kLine - 1) / kLine * kLine;
  const int64_t fit = kMostBytes / std::max<int64_t>(1, 8 * parts.doubles);
  const int64_t most = std::min<int64_t>({spec.matrices, threads, fit});
  parts.count = std::max<int64_t>(1, most);
  return parts;
}

}  // namespace

int64_t decompose_scratch_bytes(const DecomposeSpec& spec, std::span<const DecomposeArg> factors,
                                int threads) {
  const Parts parts = parts_for(spec, factors, threads);
  return parts.count * parts.doubles * int64_t(sizeof(double));
}

void decompose(const DecomposeSpec& spec, const void* x, std::span<const DecomposeArg> factors,
               void* const* results, void* scratch, ThreadPool& pool) {
  struct Context {
    const DecomposeSpec& spec;
    const void* x;
    std::span<const DecomposeArg> factors;
    void* const* results;
    double* scratch;
    Parts parts;
  } context{spec,
            x,
            factors,
            results,
            static_cast<double*>(scratch),
            parts_for(spec, factors, pool.threads())};
  auto part = [](void* given, int chunk, int) {
    const Context& c = *static_cast<const Context*>(given);
    double* memory = c.scratch + chunk * c.parts.doubles;
    Decomposition matrices(c.spec, c.x, c.factors, c.results, memory);
    const int64_t end = ThreadPool::part_begin(c.spec.matrices, c.parts.count, chunk + 1);
    for (int64_t i = ThreadPool::part_begin(c.spec.matrices, c.parts.count, chunk); i < end; ++i) {
      if (c.parts.qr) matrices.qr(i);
      if (c.parts.svd) matrices.svd(i);
    }
  };
  pool.run(int(context.parts.count), part, &context);
}

}  // namespace tinyshard
