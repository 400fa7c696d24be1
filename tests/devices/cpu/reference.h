// Double-precision references and helpers shared by the tests of the CPU's math libraries.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/dtype/half.h"
#include "devices/cpu/library.h"

namespace tinyshard::test {

// Small deterministic values with different magnitudes and signs.
inline double sample(int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + 0x1234567;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 32;
  return static_cast<double>(x % 2001) / 1000.0 - 1.0;
}

// A buffer of any float dtype with access as double.
class Buffer {
 public:
  Buffer(DType dtype, int64_t elements)
      : dtype_(dtype), bytes_(static_cast<size_t>(elements) * itemsize(dtype)) {}
  static Buffer random(DType dtype, int64_t elements, int64_t seed) {
    Buffer b(dtype, elements);
    for (int64_t i = 0; i < elements; ++i) b.set(i, sample(i + seed * 1000003));
    return b;
  }
  static Buffer filled(DType dtype, int64_t elements, double value) {
    Buffer b(dtype, elements);
    for (int64_t i = 0; i < elements; ++i) b.set(i, value);
    return b;
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const std::vector<char>& bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size() / itemsize(dtype_)); }
  double get(int64_t i) const {
    switch (dtype_) {
      case DType::F64:
        return read<double>(i);
      case DType::F16:
        return f16_to_f32(read<uint16_t>(i));
      case DType::BF16:
        return bf16_to_f32(read<uint16_t>(i));
      default:
        return read<float>(i);
    }
  }
  void set(int64_t i, double v) {
    switch (dtype_) {
      case DType::F64:
        return write(i, v);
      case DType::F16:
        return write(i, f32_to_f16(static_cast<float>(v)));
      case DType::BF16:
        return write(i, f32_to_bf16(static_cast<float>(v)));
      default:
        return write(i, static_cast<float>(v));
    }
  }

 private:
  template <class T>
  T read(int64_t i) const {
    T v;
    std::memcpy(&v, bytes_.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  }
  template <class T>
  void write(int64_t i, T v) {
    std::memcpy(bytes_.data() + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
  }
  DType dtype_;
  std::vector<char> bytes_;
};

inline double activate(double x, Activation activation) {
  if (activation == Activation::Relu) return std::max(x, 0.0);
  if (activation == Activation::GeluTanh)
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  return x;
}

// Calls f(offset of a, of b, of c) for every item of the batch.
template <class F>
void for_batch(const MatmulSpec& s, F f) {
  auto size = [&](int i) { return i < s.batch_rank ? s.batch[i] : 1; };
  for (int64_t i = 0; i < size(0); ++i)
    for (int64_t j = 0; j < size(1); ++j)
      for (int64_t k = 0; k < size(2); ++k)
        f(i * s.a_batch[0] + j * s.a_batch[1] + k * s.a_batch[2],
          i * s.b_batch[0] + j * s.b_batch[1] + k * s.b_batch[2],
          i * s.c_batch[0] + j * s.c_batch[1] + k * s.c_batch[2]);
}

// Elements that an operand with these sizes and strides spans.
inline int64_t span_of(const MatmulSpec& s, const std::array<int64_t, 3>& batch, int64_t rows,
                       int64_t cols, int64_t row_stride, int64_t col_stride) {
  int64_t last =
      std::max<int64_t>(rows - 1, 0) * row_stride + std::max<int64_t>(cols - 1, 0) * col_stride;
  for (int i = 0; i < s.batch_rank; ++i) last += std::max<int64_t>(s.batch[i] - 1, 0) * batch[i];
  return last + 1;
}
inline int64_t a_span(const MatmulSpec& s) { return span_of(s, s.a_batch, s.m, s.k, s.a_m, s.a_k); }
inline int64_t b_span(const MatmulSpec& s) { return span_of(s, s.b_batch, s.k, s.n, s.b_k, s.b_n); }
inline int64_t c_span(const MatmulSpec& s) { return span_of(s, s.c_batch, s.m, s.n, s.c_m, s.c_n); }

// Writes the product into c in double; other elements of c are left alone.
inline void matmul_reference(const MatmulSpec& s, const Buffer& a, const Buffer& b,
                             const Buffer* bias, std::vector<double>& c) {
  for_batch(s, [&](int64_t ao, int64_t bo, int64_t co) {
    for (int64_t m = 0; m < s.m; ++m)
      for (int64_t n = 0; n < s.n; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < s.k; ++k)
          sum += a.get(ao + m * s.a_m + k * s.a_k) * b.get(bo + k * s.b_k + n * s.b_n);
        if (bias) sum += bias->get(n);
        c[static_cast<size_t>(co + m * s.c_m + n * s.c_n)] = activate(sum, s.activation);
      }
  });
}

// Calls f(src index, weight index, dst index) for every product of the convolution.
template <class F>
void for_conv(const ConvSpec& s, F f) {
  int64_t o[3] = {1, 1, 1}, in[3] = {1, 1, 1}, ker[3] = {1, 1, 1};
  for (int i = 0; i < s.rank; ++i) o[i] = s.out(i), in[i] = s.in[i], ker[i] = s.kernel[i];
  int64_t cg = s.c / s.groups, og = s.oc / s.groups;
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t oc = 0; oc < s.oc; ++oc)
      for (int64_t c = 0; c < cg; ++c)
        for (int64_t x0 = 0; x0 < o[0]; ++x0)
          for (int64_t x1 = 0; x1 < o[1]; ++x1)
            for (int64_t x2 = 0; x2 < o[2]; ++x2)
              for (int64_t k0 = 0; k0 < ker[0]; ++k0)
                for (int64_t k1 = 0; k1 < ker[1]; ++k1)
                  for (int64_t k2 = 0; k2 < ker[2]; ++k2) {
                    auto at = [&](int d, int64_t x, int64_t k) {
                      return d < s.rank ? x * s.stride[d] + k * s.dilation[d] - s.pad_lo[d] : 0;
                    };
                    int64_t i0 = at(0, x0, k0), i1 = at(1, x1, k1), i2 = at(2, x2, k2);
                    if (i0 < 0 || i1 < 0 || i2 < 0 || i0 >= in[0] || i1 >= in[1] || i2 >= in[2])
                      continue;
                    int64_t src =
                        (((n * s.c + oc / og * cg + c) * in[0] + i0) * in[1] + i1) * in[2] + i2;
                    int64_t wei = (((oc * cg + c) * ker[0] + k0) * ker[1] + k1) * ker[2] + k2;
                    int64_t dst = (((n * s.oc + oc) * o[0] + x0) * o[1] + x1) * o[2] + x2;
                    f(src, wei, dst);
                  }
}

}  // namespace tinyshard::test
