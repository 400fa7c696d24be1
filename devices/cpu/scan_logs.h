// Running logs of sums of exponentials, log(exp(x[0]) + .. + exp(x[i])), of a chunk.
//
// Elements are taken relative to a base, so that a block of them takes an exponential, a sum and a
// logarithm each, in vectors. The base is a maximum that was reached: sums are at least 1. It stays where
// it is while a block exceeds it by little, for exp(kAbove) loses no digits of a sum; where a block
// exceeds it by more, or holds what is no number, its elements are taken one by one, and the base rises.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "devices/cpu/scan_kernels.h"

namespace tinyshard::scans {

// e^x for x up to kAbove, by a polynomial over half of an octave. Below -87 it is the least normal number,
// which is nothing beside a sum of at least 1.
inline float quick_exp(float x) {
  const float clamped = x < -87.f ? -87.f : x;
  const float shifted =
      clamped * 1.44269504f + 12582912.f;  // rounds to an integer, in its low bits
  const float n = shifted - 12582912.f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const int32_t power = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  __builtin_memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

// The logarithm of a normal number that is positive.
inline float quick_log(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  // The mantissa from sqrt(1/2) to sqrt(2).
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  bits -= exponent << 23;
  float m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const float r = m - 1.f, n = static_cast<float>(exponent), z = r * r;
  float p = 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const float y = p * r * z + n * -2.12194440e-4f - 0.5f * z;
  return (r + y) + n * 0.693359375f;
}

template <class T>
struct LogsOfSums {
  using Element = T;
  using Out = T;
  // sum is that of exp(x - base).
  struct Carry {
    double base, sum;
  };
  static constexpr bool kAppliesAlways = true, kWholeColumns = true;
  static constexpr int64_t kBlock = 256, kColumns = 16;
  static constexpr double kAbove = 30;

  static Carry start() { return {-std::numeric_limits<double>::infinity(), 0}; }
  static Carry join(const Carry& a, const Carry& b) {
    if (b.base > a.base) return join(b, a);
    // Equal infinities have no difference.
    const double scale = a.base == b.base ? 1 : std::exp(b.base - a.base);
    return {a.base, a.sum + (b.sum == 0 ? 0 : b.sum * scale)};
  }

  // Finds the total of a chunk; its results wait for the carry.
  static void inside(const Chunk<T, T>& c, Carry* totals) {
    Carry carry = start();
    for (int64_t i = 0; i < c.rows; i += kBlock) {
      const int64_t n = c.rows - i < kBlock ? c.rows - i : kBlock;
      if constexpr (sizeof(T) == 4) {
        if (is_near(c.x + i, n, carry)) {
          float terms[kBlock];
          exponentials(c.x + i, n, float(carry.base), terms);
          carry.sum += sum_of(terms, n);
          continue;
        }
      }
      for (int64_t k = 0; k < n; ++k) add(carry, double(c.x[i + k]));
    }
    totals[0] = carry;
  }

  static void apply(const Chunk<T, T>& c, const Carry* carries) {
    if (c.step == 1) {
      Carry carry = carries[0];
      for (int64_t i = 0; i < c.rows; i += kBlock)
        block(c.x + i, c.out + i, c.rows - i < kBlock ? c.rows - i : kBlock, carry);
      return;
    }
    // Columns are turned into rows, a block at a time.
    Carry carry[kColumns];
    for (int64_t j = 0; j < c.columns; ++j) carry[j] = carries[j];
    T rows[kColumns][kBlock];
    for (int64_t i = 0; i < c.rows; i += kBlock) {
      const int64_t n = c.rows - i < kBlock ? c.rows - i : kBlock;
      for (int64_t k = 0; k < n; ++k) {
        for (int64_t j = 0; j < c.columns; ++j) rows[j][k] = c.x[(i + k) * c.step + j];
      }
      for (int64_t j = 0; j < c.columns; ++j) block(rows[j], rows[j], n, carry[j]);
      for (int64_t k = 0; k < n; ++k) {
        for (int64_t j = 0; j < c.columns; ++j) c.out[(i + k) * c.step + j] = rows[j][k];
      }
    }
  }

 private:
  static void add(Carry& carry, double x) {
    if (x > carry.base) {
      carry = {x, carry.sum == 0 ? 1 : carry.sum * std::exp(carry.base - x) + 1};
    } else {
      carry.sum += x == carry.base ? 1 : std::exp(x - carry.base);
    }
  }

  static bool is_near(const float* x, int64_t n, const Carry& carry) {
    const float most = float(carry.base + kAbove);
    int far = !(std::isfinite(carry.base) && carry.sum >= 1);
    for (int64_t i = 0; i < n; ++i) far |= int(!(x[i] <= most));
    return !far;
  }

  static void exponentials(const float* x, int64_t n, float base, float* terms) {
    for (int64_t i = 0; i < n; ++i) terms[i] = quick_exp(x[i] - base);
  }

  static double sum_of(const float* terms, int64_t n) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      for (int64_t k = 0; k < 8; ++k) sums[k] += double(terms[i + k]);
    }
    for (; i < n; ++i) sums[0] += double(terms[i]);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  static void block(const T* x, T* out, int64_t n, Carry& carry) {
    if constexpr (sizeof(T) == 4) {
      if (is_near(x, n, carry)) {
        float terms[kBlock], sums[kBlock];
        exponentials(x, n, float(carry.base), terms);
        double total;
        Totals<Add, float, false>::inside({terms, sums, n, 1, 1, 0}, &total);
        const float base = float(carry.base);
        const double before = carry.sum;
        for (int64_t i = 0; i < n; ++i) out[i] = base + quick_log(float(before + double(sums[i])));
        carry.sum += total;
        return;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      add(carry, double(x[i]));
      out[i] = T(carry.base + std::log(carry.sum));
    }
  }
};

}  // namespace tinyshard::scans
