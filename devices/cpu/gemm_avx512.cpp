// Matrix products for CPUs with AVX-512. Compiled with its own flags (devices/CMakeLists.txt).
#if defined(__x86_64__)

#include <cstdint>
#include <immintrin.h>

// 3 vectors of b by 8 rows: 24 registers of sums
#define TINYSHARD_GEMM_VECTORS 3
#define TINYSHARD_GEMM_ROWS 8

namespace tinyshard::gemm {
namespace {

template <class T>
struct Vec;

template <>
struct Vec<float> {
  using Reg = __m512;
  static constexpr int64_t kLanes = 16;
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static void store_part(float* p, Reg v, int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }

  // 16 rows of 16 become 16 columns: pairs, then quads within 128-bit lanes, then the lanes.
  static void transpose(const float* from, int64_t from_row, float* to, int64_t to_row) {
    Reg r[16], s[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = load(from + i * from_row);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_shuffle_ps(s[i], s[i + 2], 0x44);
      r[i + 1] = _mm512_shuffle_ps(s[i], s[i + 2], 0xee);
      r[i + 2] = _mm512_shuffle_ps(s[i + 1], s[i + 3], 0x44);
      r[i + 3] = _mm512_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      s[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      s[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      s[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      s[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      store(to + i * to_row, _mm512_shuffle_f32x4(s[i], s[i + 8], 0x88));
      store(to + (i + 8) * to_row, _mm512_shuffle_f32x4(s[i], s[i + 8], 0xdd));
      store(to + (i + 4) * to_row, _mm512_shuffle_f32x4(s[i + 4], s[i + 12], 0x88));
      store(to + (i + 12) * to_row, _mm512_shuffle_f32x4(s[i + 4], s[i + 12], 0xdd));
    }
  }
};

template <>
struct Vec<double> {
  using Reg = __m512d;
  static constexpr int64_t kLanes = 8;
  static __mmask8 first(int64_t n) { return static_cast<__mmask8>((1u << n) - 1); }
  static Reg zero() { return _mm512_setzero_pd(); }
  static Reg load(const double* p) { return _mm512_loadu_pd(p); }
  static Reg load_part(const double* p, int64_t n) { return _mm512_maskz_loadu_pd(first(n), p); }
  static void store(double* p, Reg v) { _mm512_storeu_pd(p, v); }
  static void store_part(double* p, Reg v, int64_t n) { _mm512_mask_storeu_pd(p, first(n), v); }
  static Reg broadcast(const double* p) { return _mm512_set1_pd(*p); }
  static Reg add(Reg a, Reg b) { return _mm512_add_pd(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_pd(a, b, c); }
  static void transpose(const double* from, int64_t from_row, double* to, int64_t to_row) {
    for (int64_t i = 0; i < kLanes; ++i)
      for (int64_t j = 0; j < kLanes; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
};

}  // namespace
}  // namespace tinyshard::gemm

#include "devices/cpu/gemm_kernel.h"

namespace tinyshard::gemm {

Kernel avx512_kernel() { return {"AVX-512", kRows, kLanes<float>, kPanel<float>, run}; }

}  // namespace tinyshard::gemm

#endif
