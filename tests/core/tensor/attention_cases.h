// Attention and its gradients against double precision, on whatever device is the default one.
#pragma once
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::test {

struct AttentionCase {
  DType dtype = DType::BF16;
  int64_t batch = 2, heads = 3, rows = 48, columns = 48, width = 64, values = 64;
  bool causal = true;
  bool packed = false;  // q, k, v are parts of one tensor [batch, rows, 3 * heads * width]

  std::string text() const {
    return std::string(name(dtype)) + to_string(Dims{batch, heads, rows, columns, width, values}) +
           (causal ? " causal" : "") + (packed ? " packed" : "");
  }
};

// [batch * heads][rows or columns][width], all in one list.
using Numbers = std::vector<double>;

struct AttentionValues {
  Numbers q, k, v, d_result;      // given
  Numbers result, d_q, d_k, d_v;  // expected
};

// Random numbers that the type holds exactly.
inline Numbers rounded_numbers(int64_t count, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) {
    float unit = dtype == DType::BF16 ? 128 : 1024;  // fewer bits than the type has, below 4
    x = std::clamp(std::round(normal(random) * unit / 4) * 4 / unit, -3.f, 3.f);
  }
  return {values.begin(), values.end()};
}

inline AttentionValues attention_values(const AttentionCase& c, unsigned seed) {
  int64_t groups = c.batch * c.heads;
  AttentionValues x;
  x.q = rounded_numbers(groups * c.rows * c.width, c.dtype, seed);
  x.k = rounded_numbers(groups * c.columns * c.width, c.dtype, seed + 1);
  x.v = rounded_numbers(groups * c.columns * c.values, c.dtype, seed + 2);
  x.d_result = rounded_numbers(groups * c.rows * c.values, c.dtype, seed + 3);
  x.result.resize(x.d_result.size());
  x.d_q.resize(x.q.size());
  x.d_k.resize(x.k.size());
  x.d_v.resize(x.v.size());
  double scale = 1 / std::sqrt(double(c.width));
  for (int64_t g = 0; g < groups; ++g) {
    auto at = [&](Numbers& list, int64_t rows, int64_t width, int64_t i) {
      return &list[static_cast<size_t>((g * rows + i) * width)];
    };
    for (int64_t i = 0; i < c.rows; ++i) {
      const double *q = at(x.q, c.rows, c.width, i), *d = at(x.d_result, c.rows, c.values, i);
      int64_t seen = c.causal ? std::min(i + 1, c.columns) : c.columns;
      Numbers weights(static_cast<size_t>(seen)), d_weights(weights);
      double largest = -1e300, sum = 0, mean = 0;
      for (int64_t j = 0; j < seen; ++j) {
        const double* k = at(x.k, c.columns, c.width, j);
        double dot = 0;
        for (int64_t e = 0; e < c.width; ++e) dot += q[e] * k[e];
        largest = std::max(largest, weights[size_t(j)] = dot * scale);
      }
      for (double& w : weights) sum += w = std::exp(w - largest);
      for (int64_t j = 0; j < seen; ++j) {
        double w = weights[size_t(j)] /= sum;
        const double* v = at(x.v, c.columns, c.values, j);
        for (int64_t e = 0; e < c.values; ++e) {
          at(x.result, c.rows, c.values, i)[e] += w * v[e];
          at(x.d_v, c.columns, c.values, j)[e] += w * d[e];
          d_weights[size_t(j)] += d[e] * v[e];
        }
        mean += w * d_weights[size_t(j)];
      }
      for (int64_t j = 0; j < seen; ++j) {
        double d_score = weights[size_t(j)] * (d_weights[size_t(j)] - mean) * scale;
        const double* k = at(x.k, c.columns, c.width, j);
        for (int64_t e = 0; e < c.width; ++e) {
          at(x.d_q, c.rows, c.width, i)[e] += d_score * k[e];
          at(x.d_k, c.columns, c.width, j)[e] += d_score * q[e];
        }
      }
    }
  }
  return x;
}

inline Tensor tensor_of(const Numbers& numbers, const Ints& shape, DType dtype) {
  return Tensor(std::vector<float>(numbers.begin(), numbers.end()), shape).cast(dtype);
}

// Largest error relative to the largest value; a NaN is the largest error of all.
inline double attention_error(const Tensor& got, const Numbers& expected) {
  std::vector<double> values = got.cast(DType::F32).to_vector<double>();
  EXPECT_EQ(values.size(), expected.size());
  double worst = 0, size = 1e-30;
  for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
    if (!(std::abs(values[i] - expected[i]) <= worst)) worst = std::abs(values[i] - expected[i]);
    size = std::max(size, std::abs(expected[i]));
    if (std::isnan(worst)) return worst;
  }
  return worst / size;
}

struct AttentionTensors {
  Tensor q, k, v, d_result;  // by head
  Tensor packed;             // what the first three are parts of, if they are
};

// By head.
inline std::vector<Tensor> packed_parts(const AttentionCase& c, const Tensor& packed) {
  std::vector<Tensor> parts = packed.chunk(3, -1);
  for (Tensor& p : parts) p = p.unflatten(-1, {c.heads, -1}).transpose(1, 2);
  return parts;
}

inline AttentionTensors attention_tensors(const AttentionCase& c, const AttentionValues& x) {
  AttentionTensors t;
  t.q = tensor_of(x.q, {c.batch, c.heads, c.rows, c.width}, c.dtype);
  t.k = tensor_of(x.k, {c.batch, c.heads, c.columns, c.width}, c.dtype);
  t.v = tensor_of(x.v, {c.batch, c.heads, c.columns, c.values}, c.dtype);
  t.d_result = tensor_of(x.d_result, {c.batch, c.heads, c.rows, c.values}, c.dtype).realize();
  if (c.packed) {
    auto flat = [](const Tensor& by_head) { return by_head.transpose(1, 2).flatten(2); };
    t.packed = cat({flat(t.q), flat(t.k), flat(t.v)}, -1).contiguous().realize();
    t.d_result = t.d_result.transpose(1, 2).contiguous().realize().transpose(1, 2);
    std::vector<Tensor> parts = packed_parts(c, t.packed);
    t.q = parts[0], t.k = parts[1], t.v = parts[2];
  } else {
    t.q.realize(), t.k.realize(), t.v.realize();
  }
  return t;
}

inline double attention_tolerance(DType dtype) { return dtype == DType::BF16 ? 2e-2 : 2.5e-3; }

// Compares those of q, k, v, each against its own largest value.
inline void check_gradients(const AttentionCase& c, const std::vector<Tensor>& d,
                            const AttentionValues& x) {
  double tolerance = attention_tolerance(c.dtype);
  EXPECT_LT(attention_error(d[0], x.d_q), tolerance) << c.text() << ", gradient of q";
  EXPECT_LT(attention_error(d[1], x.d_k), tolerance) << c.text() << ", gradient of k";
  EXPECT_LT(attention_error(d[2], x.d_v), tolerance) << c.text() << ", gradient of v";
}

inline void check_attention(const AttentionCase& c) {
  AttentionValues x = attention_values(c, 17);
  AttentionTensors t = attention_tensors(c, x);
  Tensor y = t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = c.causal});
  EXPECT_EQ(y.dtype(), c.dtype);
  std::vector<Tensor> d = y.gradient({t.q, t.k, t.v}, t.d_result);
  Tensor whole = c.packed ? y.gradient({t.packed}, t.d_result)[0] : Tensor();
  Tensor::realize({y, d[0], d[1], d[2]});
  EXPECT_LT(attention_error(y, x.result), attention_tolerance(c.dtype)) << c.text();
  check_gradients(c, d, x);
  if (c.packed) check_gradients(c, packed_parts(c, whole.realize()), x);
}

}  // namespace tinyshard::test
