// There is a loop for each type and reduction, found in a table. It takes 1024
// elements at a time through all inputs, in a type that is wide enough, and
// rounds once at the end: each element is combined in the order of the inputs. A
// block is stored when all inputs of it have been read, so `out` may be an input.
#include "transport/reduce.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/uop/combine.h"

namespace tinyshard {
namespace {

// A block of accumulators stays in the first-level cache; it also makes `out` free to be any of the
// inputs.
constexpr size_t kBlock = 1024;

#if defined(__x86_64__)
// Half floats eight at a time where the processor can: the portable conversion is twenty times
// slower.
__attribute__((target("avx,f16c"))) void load_f16c(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(out + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
}
__attribute__((target("avx,f16c"))) void store_f16c(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), 0));
  }
}
bool has_f16c() {
  static const bool has = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
  return has;
}
#else
void load_f16c(const uint16_t*, float*, size_t) {}
void store_f16c(const float*, uint16_t*, size_t) {}
bool has_f16c() { return false; }
#endif

// Storage, the type in which terms are combined, and the way between them, for up to kBlock
// elements.
template <class T>
struct Plain {
  using Stored = T;
  using Combined = T;
  static void load(const T* in, T* out, size_t n) { std::copy_n(in, n, out); }
  static void store(const T* in, T* out, size_t n) { std::copy_n(in, n, out); }
};
struct F16 {
  using Stored = uint16_t;
  using Combined = float;
  static void load(const uint16_t* in, float* out, size_t n) {
    const size_t wide = has_f16c() ? n / 8 * 8 : 0;
    load_f16c(in, out, wide);
    for (size_t i = wide; i < n; ++i) out[i] = f16_to_f32(in[i]);
  }
  static void store(const float* in, uint16_t* out, size_t n) {
    const size_t wide = has_f16c() ? n / 8 * 8 : 0;
    store_f16c(in, out, wide);
    for (size_t i = wide; i < n; ++i) out[i] = f32_to_f16(in[i]);
  }
};
struct BF16 {
  using Stored = uint16_t;
  using Combined = float;
  static void load(const uint16_t* in, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = bf16_to_f32(in[i]);
  }
  static void store(const float* in, uint16_t* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = f32_to_bf16(in[i]);
  }
};
template <DType dtype>
struct Float8 {
  using Stored = uint8_t;
  using Combined = float;
  static constexpr Float8Format kFormat = float8_format(dtype);
  static void load(const uint8_t* in, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = float8_to_f32(kFormat, in[i]);
  }
  static void store(const float* in, uint8_t* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = f32_to_float8(kFormat, in[i]);
  }
};
template <class Element, ReduceOp op>
void reduce_all(std::byte* out_bytes, std::span<const std::byte* const> in, size_t count) {
  using Stored = typename Element::Stored;
  using Combined = typename Element::Combined;
  Combined sum[kBlock], converted[kBlock];
  auto* out = reinterpret_cast<Stored*>(out_bytes);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    Element::load(reinterpret_cast<const Stored*>(in[0]) + begin, sum, n);
    for (size_t term = 1; term < in.size(); ++term) {
      const auto* stored = reinterpret_cast<const Stored*>(in[term]) + begin;
      const Combined* next = converted;
      if constexpr (std::is_same_v<Element, Plain<Combined>>) {
        next = stored;
      } else {
        Element::load(stored, converted, n);
      }
      for (size_t i = 0; i < n; ++i) sum[i] = combined<op>(sum[i], next[i]);
    }
    Element::store(sum, out + begin, n);
  }
}

using Kernel = void (*)(std::byte*, std::span<const std::byte* const>, size_t);

using Kernels = std::array<Kernel, kReduceOps>;

template <class Element>
constexpr Kernels kernels() {
  return by_reduction([]<ReduceOp op>() -> Kernel { return reduce_all<Element, op>; });
}

// Rows in the order of DType.
constexpr std::array<Kernels, kDTypes - 1> kKernels = {{
    kernels<Plain<uint8_t>>(),  // truth values are the bytes 0 and 1
    kernels<Plain<int8_t>>(),
    kernels<Plain<int16_t>>(),
    kernels<Plain<int32_t>>(),
    kernels<Plain<int64_t>>(),
    kernels<Plain<uint8_t>>(),
    kernels<Plain<uint16_t>>(),
    kernels<Plain<uint32_t>>(),
    kernels<Plain<uint64_t>>(),
    kernels<Float8<DType::F8E4M3FN>>(),
    kernels<Float8<DType::F8E5M2>>(),
    kernels<Float8<DType::F8E4M3FNUZ>>(),
    kernels<Float8<DType::F8E5M2FNUZ>>(),
    kernels<F16>(),
    kernels<BF16>(),
    kernels<Plain<float>>(),
    kernels<Plain<double>>(),
}};
static_assert(static_cast<size_t>(DType::Index) == kKernels.size());

}  // namespace

void reduce_buffers(DType dtype, ReduceOp op, std::byte* out, std::span<const std::byte* const> in,
                    size_t count) {
  check_internal(dtype != DType::Index, "index values are never reduced");
  if (count == 0) return;
  if (in.size() == 1) {
    if (out != in[0]) std::memcpy(out, in[0], count * itemsize(dtype));
    return;
  }
  if (dtype == DType::Bool) op = info(op).of_truths;
  kKernels[static_cast<size_t>(dtype)][static_cast<size_t>(op)](out, in, count);
}

}  // namespace tinyshard
