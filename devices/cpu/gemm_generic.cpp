// Matrix products for any CPU: vectors of 16 bytes, which the compiler maps to what the target has.
#include <cstdint>

// 3 vectors of b by 4 rows: 12 registers of sums
#define TINYSHARD_GEMM_VECTORS 3
#define TINYSHARD_GEMM_ROWS 4

namespace tinyshard::gemm {
namespace {

template <class T>
struct Vec {
  static constexpr int64_t kLanes = 16 / sizeof(T);
  using Reg [[gnu::vector_size(16)]] = T;
  using Unaligned [[gnu::vector_size(16), gnu::aligned(sizeof(T)), gnu::may_alias]] = T;

  static Reg zero() { return Reg{}; }
  static Reg load(const T* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static Reg load_part(const T* p, int64_t n) {
    Reg v{};
    for (int64_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  static void store(T* p, Reg v) { *reinterpret_cast<Unaligned*>(p) = v; }
  static void store_part(T* p, Reg v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
  }
  static Reg broadcast(const T* p) { return *p - Reg{}; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static void transpose(const T* from, int64_t from_row, T* to, int64_t to_row) {
    for (int64_t i = 0; i < kLanes; ++i)
      for (int64_t j = 0; j < kLanes; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
};

}  // namespace
}  // namespace tinyshard::gemm

#include "devices/cpu/gemm_kernel.h"

namespace tinyshard::gemm {

Kernel generic_kernel() { return {"generic", kRows, kLanes<float>, kPanel<float>, run}; }

}  // namespace tinyshard::gemm
