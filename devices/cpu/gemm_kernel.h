// The matrix product kernel, written once over a vector type and compiled once per instruction set
// (gemm_generic.cpp, gemm_avx2.cpp, gemm_avx512.cpp define Vec<float> and Vec<double>, then include
// this). Everything is in an anonymous namespace, so that no code for a newer CPU leaks out.
//
// The shape is the usual one: a panel of b, a few vectors wide, is packed so that it streams from
// L2; a few rows of c stay in registers over a block of k; the elements of a are broadcast, from
// the caller's matrix where its layout and size allow, else from packed groups of rows.
#pragma once
#include <cstring>

#include "devices/cpu/gemm_task.h"

namespace tinyshard::gemm {
namespace {

using Half = uint16_t;

template <class T>
using Reg = typename Vec<T>::Reg;

template <class T>
constexpr int64_t kLanes = Vec<T>::kLanes;
constexpr int64_t kRows = TINYSHARD_GEMM_ROWS;  // of c in registers
template <class T>
constexpr int64_t kPanel = TINYSHARD_GEMM_VECTORS * kLanes<T>;  // columns of c in registers
constexpr int64_t kBlockBytes = 320 << 10;                      // of packed b: stays in L2
constexpr int64_t kGroupRows = 48;   // of a, packed together: whole cache lines of columns
constexpr int64_t kStripRows = 480;  // of sums that cannot go straight to c
static_assert(kGroupRows % kRows == 0 && kStripRows % kGroupRows == 0);

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ------------------------------------------------------------------------------ the inner kernel

template <class T>
struct Tile {
  int64_t k;
  const T* a;
  int64_t a_row, a_k;
  const T* b;
  int64_t b_k;
  int64_t last;  // columns in the last vector
  T* c;
  int64_t c_row;
  bool accumulate;
};

// MR rows by NV vectors. `Part`: the last vector is not whole.
template <class T, int MR, int NV, bool Part>
void tile(const Tile<T>& t) {
  using V = Vec<T>;
  Reg<T> sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) sum[i][j] = V::zero();
  const T* a[MR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) a[i] = t.a + i * t.a_row;
  const T* b = t.b;
  const int64_t a_k = t.a_k, b_k = t.b_k, c_row = t.c_row;
  // The rows of c travel from memory while the sums are formed.
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) __builtin_prefetch(t.c + i * c_row, 1);
  for (int64_t k = 0, at = 0; k < t.k; ++k, at += a_k, b += b_k) {
    Reg<T> bv[NV];
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j)
      bv[j] = Part && j == NV - 1 ? V::load_part(b + j * V::kLanes, t.last)
                                  : V::load(b + j * V::kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      Reg<T> av = V::broadcast(a[i] + at);
#pragma GCC unroll 16
      for (int j = 0; j < NV; ++j) sum[i][j] = V::fma(av, bv[j], sum[i][j]);
    }
  }
  auto finish = [&](auto combine) {
    T* row = t.c;
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i, row += c_row) {
#pragma GCC unroll 16
      for (int j = 0; j < NV; ++j) {
        T* to = row + j * V::kLanes;
        if (Part && j == NV - 1)
          V::store_part(to, combine(sum[i][j], to, true), t.last);
        else
          V::store(to, combine(sum[i][j], to, false));
      }
    }
  };
  if (t.accumulate) {
    finish([&](Reg<T> v, const T* p, bool part) {
      return V::add(v, part ? V::load_part(p, t.last) : V::load(p));
    });
  } else {
    finish([](Reg<T> v, const T*, bool) { return v; });
  }
}

template <class T, int MR>
void tile_of_rows(const Tile<T>& t, int64_t vectors, bool part) {
  if (vectors == 1) return part ? tile<T, MR, 1, true>(t) : tile<T, MR, 1, false>(t);
  if (vectors == 2) return part ? tile<T, MR, 2, true>(t) : tile<T, MR, 2, false>(t);
  return part ? tile<T, MR, 3, true>(t) : tile<T, MR, 3, false>(t);
}
static_assert(TINYSHARD_GEMM_VECTORS == 3);

// `rows` <= kRows rows of c.
template <class T>
void tiles(Tile<T> t, int64_t rows, int64_t vectors, bool part) {
  if (rows == kRows) return tile_of_rows<T, kRows>(t, vectors, part);
  auto take = [&]<int MR>() {
    if (rows < MR) return;
    tile_of_rows<T, MR>(t, vectors, part);
    t.a += MR * t.a_row;
    t.c += MR * t.c_row;
    rows -= MR;
  };
  if constexpr (kRows > 4) take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

// ------------------------------------------------------------------- element types and packing

inline float to_float(float v) { return v; }
inline double to_float(double v) { return v; }

template <Element E>
struct Storage;
template <>
struct Storage<Element::F32> {
  using Stored = float;
  using Sum = float;
  static float get(const float* p) { return *p; }
  static void set(float* p, float v) { *p = v; }
};
template <>
struct Storage<Element::F64> {
  using Stored = double;
  using Sum = double;
  static double get(const double* p) { return *p; }
  static void set(double* p, double v) { *p = v; }
};
template <>
struct Storage<Element::BF16> {
  using Stored = Half;
  using Sum = float;
  static float get(const Half* p) {
    uint32_t bits = uint32_t{*p} << 16;
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }
  static void set(Half* p, float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    *p =
        static_cast<Half>(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
  }
};
template <>
struct Storage<Element::F16> {
  using Stored = Half;
  using Sum = float;
  static float get(const Half* p) {
    uint32_t bits = *p, sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    uint32_t normal = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u);
    float small = static_cast<float>(rest) * 0x1p-24f, v;
    if (rest < 0x400u) std::memcpy(&normal, &small, 4);
    normal |= sign;
    std::memcpy(&v, &normal, 4);
    return v;
  }
  static void set(Half* p, float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu, half;
    if (rest > 0x7f800000u) {
      half = 0x7e00u;
    } else if (rest >= 0x47800000u) {
      half = 0x7c00u;
    } else if (rest < 0x38800000u) {  // subnormal: the f32 adder rounds at 2^-24
      float magnitude, shifted;
      std::memcpy(&magnitude, &rest, 4);
      shifted = magnitude + 0.5f;
      std::memcpy(&half, &shifted, 4);
      half -= 0x3f000000u;
    } else {
      half = (rest + 0xfffu + ((rest >> 13) & 1u) - 0x38000000u) >> 13;
    }
    *p = static_cast<Half>(sign | half);
  }
};

template <int64_t N>
struct Count {
  static constexpr int64_t value = N;
};

// Packs k rows by `cols` columns of b (from `b`, with strides) as k rows of `width` elements, the
// columns beyond `cols` zero.
template <Element E>
void pack_panel(const typename Storage<E>::Stored* b, int64_t b_k, int64_t b_n, int64_t k,
                int64_t cols, int64_t width, typename Storage<E>::Sum* out) {
  using S = Storage<E>;
  using T = typename S::Sum;
  using V = Vec<T>;
  constexpr int64_t L = V::kLanes;
  if constexpr (E == Element::F32 || E == Element::F64) {
    if (b_n == 1) {
      const int64_t last = cols - (width - L);
      auto copy = [&](auto vectors) {
        constexpr int64_t kWhole = decltype(vectors)::value - 1;
        for (int64_t i = 0; i < k; ++i, b += b_k, out += width) {
#pragma GCC unroll 4
          for (int64_t j = 0; j < kWhole; ++j) V::store(out + j * L, V::load(b + j * L));
          V::store(out + kWhole * L,
                   last == L ? V::load(b + kWhole * L) : V::load_part(b + kWhole * L, last));
        }
      };
      if (width == L) return copy(Count<1>());
      if (width == 2 * L) return copy(Count<2>());
      return copy(Count<3>());
    }
    if (b_k == 1) {
      for (int64_t j = 0; j < cols; j += L) {
        int64_t i = 0, count = least(L, cols - j);
        if (count == L)
          for (; i + L <= k; i += L) V::transpose(b + j * b_n + i, b_n, out + i * width + j, width);
        for (; i < k; ++i)
          for (int64_t l = 0; l < L; ++l)
            out[i * width + j + l] = l < count ? b[(j + l) * b_n + i] : T(0);
      }
      return;
    }
  }
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < width; ++j)
      out[i * width + j] = j < cols ? S::get(b + i * b_k + j * b_n) : T(0);
}

// Packs `rows` rows of a (at most kGroupRows), kRows at a time: out[row / kRows][k][row % kRows].
template <Element E>
void pack_rows(const typename Storage<E>::Stored* a, int64_t a_m, int64_t a_k, int64_t k,
               int64_t rows, typename Storage<E>::Sum* out) {
  using S = Storage<E>;
  using T = typename S::Sum;
  using V = Vec<T>;
  constexpr int64_t L = V::kLanes;
  int64_t r = 0;
  if constexpr (E == Element::F32 || E == Element::F64) {
    const int64_t whole = rows / kRows * kRows;
    if (a_m == 1) {
      for (int64_t i = 0; i < k; ++i)
        for (r = 0; r < whole; r += kRows)
          std::memcpy(out + r * k + i * kRows, a + i * a_k + r, kRows * sizeof(T));
      r = whole;
    } else if (a_k == 1 && L <= kRows) {
      for (; r < whole; r += kRows)
        for (int64_t l = 0; l < kRows; l += L) {
          int64_t i = 0;
          for (; i + L <= k; i += L)
            V::transpose(a + (r + l) * a_m + i, a_m, out + r * k + i * kRows + l, kRows);
          for (; i < k; ++i)
            for (int64_t j = l; j < l + L; ++j) out[r * k + i * kRows + j] = a[(r + j) * a_m + i];
        }
    } else if (a_k == 1) {
      static_assert(L <= kRows || L == 2 * kRows);
      for (; r + L <= rows; r += L) {
        T* low = out + r * k;
        T* high = low + kRows * k;
        T square[L * L];
        int64_t i = 0;
        for (; i + L <= k; i += L) {
          V::transpose(a + r * a_m + i, a_m, square, L);
          for (int64_t j = 0; j < L; ++j) {
            std::memcpy(low + (i + j) * kRows, square + j * L, kRows * sizeof(T));
            std::memcpy(high + (i + j) * kRows, square + j * L + kRows, kRows * sizeof(T));
          }
        }
        for (; i < k; ++i)
          for (int64_t j = 0; j < kRows; ++j) {
            low[i * kRows + j] = a[(r + j) * a_m + i];
            high[i * kRows + j] = a[(r + kRows + j) * a_m + i];
          }
      }
    }
  }
  for (; r < rows; ++r) {
    T* to = out + r / kRows * kRows * k + r % kRows;
    for (int64_t i = 0; i < k; ++i) to[i * kRows] = S::get(a + r * a_m + i * a_k);
  }
}

// --------------------------------------------------------------------------------------- finish

// x * sigmoid(2u) is the same as x/2 * (1 + tanh(u)). exp as 2^i * 2^f, straight-line so that the
// compiler makes vectors of it; f64 keeps more terms.
inline float gelu(float x) {
  float u = x * (1.5957691216057308f + 0.0713548163f * x * x);
  float t = u * -1.44269504088896341f;
  t = t > 126.f ? 126.f : t;
  t = t < -126.f ? -126.f : t;
  float whole = static_cast<float>(static_cast<int32_t>(t + (t < 0 ? -0.5f : 0.5f)));
  float f = (t - whole) * 0.69314718056f;
  float p =
      1.f +
      f * (1.f + f * (0.5f + f * (0.16666667f +
                                  f * (0.041666668f + f * (0.0083333333f + f * 0.0013888889f)))));
  int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return x / (1.f + p * scale);
}

inline double gelu(double x) {
  double u = x * (1.5957691216057308 + 0.071354816272556 * x * x);
  return x / (1.0 + __builtin_exp(-u));
}

// Bias and activation on a block of sums, in place.
template <class T>
void activate(const Task& task, int64_t row, int64_t rows, int64_t col, int64_t cols, T* c,
              int64_t c_row) {
  const T* bias = static_cast<const T*>(task.bias);
  for (int64_t i = 0; i < rows; ++i, c += c_row) {
    if (bias) {
      const T* at = bias + (row + i) * task.bias_m + col * task.bias_n;
      if (task.bias_n == 1)
        for (int64_t j = 0; j < cols; ++j) c[j] += at[j];
      else
        for (int64_t j = 0; j < cols; ++j) c[j] += at[j * task.bias_n];
    }
    if (task.epilogue == Epilogue::Relu)
      for (int64_t j = 0; j < cols; ++j) c[j] = c[j] < T(0) ? T(0) : c[j];
    if (task.epilogue == Epilogue::GeluTanh)
      for (int64_t j = 0; j < cols; ++j) c[j] = gelu(c[j]);
  }
}

// Writes finished sums [rows][kPanel] to c, in its type and with its strides.
template <Element Out>
void write_out(const typename Storage<Out>::Sum* sums, int64_t rows, int64_t cols,
               typename Storage<Out>::Stored* c, int64_t c_m, int64_t c_n) {
  using S = Storage<Out>;
  using T = typename S::Sum;
  using V = Vec<T>;
  constexpr int64_t L = V::kLanes, kWidth = kPanel<T>;
  if (c_n == 1) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) S::set(c + i * c_m + j, sums[i * kWidth + j]);
    return;
  }
  int64_t i = 0;
  if constexpr (Out == Element::F32 || Out == Element::F64) {
    if (c_m == 1)
      for (; i + L <= rows; i += L) {
        int64_t j = 0;
        for (; j + L <= cols; j += L)
          V::transpose(sums + i * kWidth + j, kWidth, c + i + j * c_n, c_n);
        for (; j < cols; ++j)
          for (int64_t r = i; r < i + L; ++r) c[r + j * c_n] = sums[r * kWidth + j];
      }
  }
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t r = i; r < rows; ++r) S::set(c + r * c_m + j * c_n, sums[r * kWidth + j]);
}

// ------------------------------------------------------------------------------------ the blocks

template <Element In, Element Out>
void run_as(const Task& task) {
  using Stored = typename Storage<In>::Stored;
  using Result = typename Storage<Out>::Stored;
  using T = typename Storage<In>::Sum;
  constexpr int64_t L = kLanes<T>, kWidth = kPanel<T>;
  constexpr bool kPlain = sizeof(Stored) == sizeof(T), kPlainOut = sizeof(Result) == sizeof(T);

  const Stored* a = static_cast<const Stored*>(task.a);
  const Stored* b = static_cast<const Stored*>(task.b);
  Result* c = static_cast<Result*>(task.c);

  // Sums go straight to c where that has their type and unit stride; else to a strip one panel
  // wide, which is written out when its last block of k is done.
  const bool direct = kPlainOut && (task.c_n == 1 || task.n == 1);
  const bool finish = task.bias || task.epilogue != Epilogue::None;
  // Packing b pays when several row blocks use its elements. With few rows, and columns that
  // vectors can read in place, it does not.
  const bool in_place = kPlain && (task.b_n == 1 || task.n == 1) && task.m <= 4 * kRows;
  // Broadcasts read row-major a where it lies. Other layouts would touch a cache line per element,
  // and 16-bit elements are widened on the way.
  const bool pack_a = !kPlain || (task.a_k != 1 && task.m > 1 && task.n > L);

  const int64_t blocks = k_blocks(task.k);
  const int64_t k_step = task.k > 0 ? (task.k + blocks - 1) / blocks : 1;
  int64_t n_step = kWidth, m_step = kStripRows;
  if (direct) {
    n_step = kBlockBytes / (static_cast<int64_t>(sizeof(T)) * k_step) / kWidth * kWidth;
    if (n_step < kWidth) n_step = kWidth;
    m_step = task.m;
  }
  T* strip = static_cast<T*>(task.scratch);
  T* rows_packed = strip + kStripRows * kWidth;
  T* panels = rows_packed + kGroupRows * k_step;

  for (int64_t n0 = 0; n0 < task.n; n0 += n_step)
    for (int64_t m0 = 0; m0 < task.m; m0 += m_step) {
      const int64_t n_count = least(n_step, task.n - n0), m_count = least(m_step, task.m - m0);
      // Panels of nearly equal width: a narrow last one would waste loads.
      const int64_t all_vectors = (n_count + L - 1) / L;
      const int64_t n_panels = (n_count + kWidth - 1) / kWidth;
      auto panel_begin = [&](int64_t p) { return all_vectors * p / n_panels * L; };
      for (int64_t k0 = 0; k0 == 0 || k0 < task.k; k0 += k_step) {
        const int64_t k_count = least(k_step, task.k - k0);
        const bool last = k0 + k_count == task.k;
        const Stored* b_block = b + k0 * task.b_k + n0 * task.b_n;
        if (!in_place)
          for (int64_t p = 0; p < n_panels; ++p) {
            const int64_t j = panel_begin(p), width = panel_begin(p + 1) - j;
            pack_panel<In>(b_block + j * task.b_n, task.b_k, task.b_n, k_count,
                           least(width, n_count - j), width, panels + j * k_count);
          }
        for (int64_t group = 0; group < m_count; group += kGroupRows) {
          const int64_t group_count = least(kGroupRows, m_count - group);
          const Stored* a_group = a + (m0 + group) * task.a_m + k0 * task.a_k;
          if (pack_a) pack_rows<In>(a_group, task.a_m, task.a_k, k_count, group_count, rows_packed);
          for (int64_t p = 0; p < n_panels; ++p) {
            const int64_t j = panel_begin(p), width = panel_begin(p + 1) - j;
            const int64_t cols = least(width, n_count - j);
            Tile<T> t{};
            t.k = k_count;
            t.accumulate = k0 != 0;
            t.last = cols - (width - L);
            t.b = panels + j * k_count, t.b_k = width;
            if constexpr (kPlain)
              if (in_place) t.b = b_block + j * task.b_n, t.b_k = task.b_k;
            for (int64_t i = 0; i < group_count; i += kRows) {
              const int64_t row = m0 + group + i, rows = least(kRows, group_count - i);
              if (pack_a) {
                t.a = rows_packed + i * k_count, t.a_row = 1, t.a_k = kRows;
              } else if constexpr (kPlain) {
                t.a = a_group + i * task.a_m, t.a_row = task.a_m, t.a_k = task.a_k;
              }
              t.c = strip + (group + i) * kWidth, t.c_row = kWidth;
              if constexpr (kPlainOut)
                if (direct) t.c = c + row * task.c_m + n0 + j, t.c_row = task.c_m;
              tiles<T>(t, rows, width / L, t.last != L);
              if (last && finish) activate<T>(task, row, rows, n0 + j, cols, t.c, t.c_row);
            }
          }
        }
      }
      if (!direct)
        write_out<Out>(strip, m_count, n_count, c + m0 * task.c_m + n0 * task.c_n, task.c_m,
                       task.c_n);
    }
}

void run(const Task& task) {
  switch (task.in) {
    case Element::F32:
      return run_as<Element::F32, Element::F32>(task);
    case Element::F64:
      return run_as<Element::F64, Element::F64>(task);
    case Element::F16:
      return task.out == Element::F32 ? run_as<Element::F16, Element::F32>(task)
                                      : run_as<Element::F16, Element::F16>(task);
    case Element::BF16:
      return task.out == Element::F32 ? run_as<Element::BF16, Element::F32>(task)
                                      : run_as<Element::BF16, Element::BF16>(task);
  }
}

}  // namespace
}  // namespace tinyshard::gemm
