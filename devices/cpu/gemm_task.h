// A piece of a matrix product, as handed to the kernels of one instruction set. Plain data only:
// this header is included by files compiled for newer CPUs, which must not instantiate anything
// that the linker could share with the rest of the program.
#pragma once
#include <cstdint>

namespace tinyshard::gemm {

enum class Element : uint8_t { F32, F64, F16, BF16 };
enum class Epilogue : uint8_t { None, Relu, GeluTanh };

// c[m][n] = epilogue(sum over k of a[m][k] * b[k][n] + bias[n]); strides in elements.
// F64 sums in F64, all others in F32. `out` is `in`, or F32 for the 16-bit types.
struct Task {
  Element in = Element::F32, out = Element::F32;
  Epilogue epilogue = Epilogue::None;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // F32 (F64 for F64), or null
  void* c = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_m = 0, a_k = 0, b_k = 0, b_n = 0, c_m = 0, c_n = 0;
  int64_t bias_n = 1, bias_m = 0;  // strides of the bias: a transposed product has it over m
  void* scratch = nullptr;         // kScratchBytes, 64-byte aligned, of the executing thread
};

inline constexpr int64_t kScratchBytes = 1 << 20;

// The sum of one element of c runs over k in order, restarting at these block ends: the bits of a
// result depend on k alone, not on m, n, layouts or how the product was cut into tasks.
inline int64_t k_blocks(int64_t k) { return k <= 512 ? 1 : (k + 383) / 384; }

using Run = void (*)(const Task&);
struct Kernel {
  const char* isa;
  int64_t rows;   // of c in registers
  int64_t lanes;  // F32 elements of a vector
  int64_t panel;  // F32 columns of c in registers
  Run run;
};

Kernel generic_kernel();
#if defined(__x86_64__)
Kernel avx2_kernel();
Kernel avx512_kernel();
#endif

}  // namespace tinyshard::gemm
