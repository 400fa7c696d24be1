// Matrix products for CPUs with AVX2 and FMA. Compiled with its own flags (devices/CMakeLists.txt).
#if defined(__x86_64__)

#include <cstdint>
#include <immintrin.h>

// 3 vectors of b by 4 rows: 12 registers of sums
#define TINYSHARD_GEMM_VECTORS 3
#define TINYSHARD_GEMM_ROWS 4

namespace tinyshard::gemm {
namespace {

template <class T>
struct Vec;

template <>
struct Vec<float> {
  using Reg = __m256;
  static constexpr int64_t kLanes = 8;
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static void store_part(float* p, Reg v, int64_t n) { _mm256_maskstore_ps(p, first(n), v); }
  static Reg broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }

  static void transpose(const float* from, int64_t from_row, float* to, int64_t to_row) {
    Reg r[8], s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = load(from + i * from_row);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      store(to + i * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      store(to + (i + 4) * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
};

template <>
struct Vec<double> {
  using Reg = __m256d;
  static constexpr int64_t kLanes = 4;
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static Reg zero() { return _mm256_setzero_pd(); }
  static Reg load(const double* p) { return _mm256_loadu_pd(p); }
  static Reg load_part(const double* p, int64_t n) { return _mm256_maskload_pd(p, first(n)); }
  static void store(double* p, Reg v) { _mm256_storeu_pd(p, v); }
  static void store_part(double* p, Reg v, int64_t n) { _mm256_maskstore_pd(p, first(n), v); }
  static Reg broadcast(const double* p) { return _mm256_broadcast_sd(p); }
  static Reg add(Reg a, Reg b) { return _mm256_add_pd(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_pd(a, b, c); }
  static void transpose(const double* from, int64_t from_row, double* to, int64_t to_row) {
    for (int64_t i = 0; i < kLanes; ++i)
      for (int64_t j = 0; j < kLanes; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
};

}  // namespace
}  // namespace tinyshard::gemm

#include "devices/cpu/gemm_kernel.h"

namespace tinyshard::gemm {

Kernel avx2_kernel() { return {"AVX2", kRows, kLanes<float>, kPanel<float>, run}; }

}  // namespace tinyshard::gemm

#endif
