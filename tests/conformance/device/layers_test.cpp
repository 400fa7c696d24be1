// Products, convolutions, attention and their gradients, which libraries may compute, on a device of
// each kind, by a library where it takes the call and by generated kernels, against plain loops in
// double. Operands are eighths up to one, which all types hold.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/conformance/device/device_case.h"

namespace tinyshard::test::layers_test {
namespace {

using Values = std::vector<double>;

class DeviceLayers : public DeviceCase {
 protected:
  void TearDown() override { ::unsetenv("TS_LIBRARIES"); }

  Tensor there(const Values& values, const Dims& shape, DType type) const {
    return Tensor(values, Ints(shape)).cast(type).to(std::string(GetParam()) + ":0").realize();
  }
  static Values numbers(const Dims& shape, int step) {
    Values values(size_t(product(shape)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = double(int(i * size_t(step) + 3) % 17 - 8) / 8;
    return values;
  }
  // `roundings` of the type at the size of the terms, which are `terms` numbers up to one.
  void expect(const Tensor& got, const Values& want, double terms, double roundings = 2) {
    got.realize();
    if (!device().executes()) return;
    const double epsilon = got.dtype() == DType::F64    ? 0x1p-52
                           : got.dtype() == DType::F32  ? 0x1p-23
                           : got.dtype() == DType::BF16 ? 0x1p-8
                                                        : 0x1p-11;
    const Values values = got.to_vector<double>();
    ASSERT_EQ(values.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      // The sum is in f32 at least, and rounded once to the type of the result.
      const double allowed =
          roundings * (std::sqrt(terms) * terms * (got.dtype() == DType::F64 ? epsilon : 0x1p-23) +
                       epsilon * std::fabs(want[i]));
      ASSERT_NEAR(values[i], want[i], allowed + 1e-300) << "element " << i;
    }
  }

  // Once with libraries and once without.
  template <class Body>
  void both_ways(const Body& body) {
    for (const char* libraries : {"1", "0"}) {
      ::setenv("TS_LIBRARIES", libraries, 1);
      SCOPED_TRACE(std::string("TS_LIBRARIES=") + libraries);
      ASSERT_NO_FATAL_FAILURE(body());
    }
  }
};

constexpr DType kFloats[] = {DType::F32, DType::F64, DType::F16, DType::BF16};

TEST_P(DeviceLayers, ProductsAndTheirGradients) {
  struct Product {
    int64_t batch, rows, terms, columns;
    bool first_transposed, second_transposed;
  };
  both_ways([&] {
    for (const Product& p : {Product{1, 5, 7, 3, false, false},
                             {3, 8, 16, 24, true, false},
                             {2, 1, 40, 9, false, true},
                             {1, 33, 64, 1, true, true}}) {
      for (const DType type : kFloats) {
        SCOPED_TRACE(std::string(name(type)) + " of " + std::to_string(p.terms) + " terms");
        const Dims first = p.first_transposed ? Dims{p.batch, p.terms, p.rows}
                                              : Dims{p.batch, p.rows, p.terms},
                   second = p.second_transposed ? Dims{p.batch, p.columns, p.terms}
                                                : Dims{p.batch, p.terms, p.columns};
        const Values a = numbers(first, 5), b = numbers(second, 7),
                     g = numbers({p.batch, p.rows, p.columns}, 3);
        auto a_at = [&](int64_t n, int64_t r, int64_t t) {
          return size_t(p.first_transposed ? (n * p.terms + t) * p.rows + r
                                           : (n * p.rows + r) * p.terms + t);
        };
        auto b_at = [&](int64_t n, int64_t t, int64_t c) {
          return size_t(p.second_transposed ? (n * p.columns + c) * p.terms + t
                                            : (n * p.terms + t) * p.columns + c);
        };
        Values y(g.size()), da(a.size()), db(b.size());
        for (int64_t n = 0; n < p.batch; ++n) {
          for (int64_t r = 0; r < p.rows; ++r) {
            for (int64_t c = 0; c < p.columns; ++c) {
              const auto at = size_t((n * p.rows + r) * p.columns + c);
              for (int64_t t = 0; t < p.terms; ++t) {
                y[at] += a[a_at(n, r, t)] * b[b_at(n, t, c)];
                da[a_at(n, r, t)] += g[at] * b[b_at(n, t, c)];
                db[b_at(n, t, c)] += g[at] * a[a_at(n, r, t)];
              }
            }
          }
        }
        const Tensor x = there(a, first, type), w = there(b, second, type);
        const Tensor z = (p.first_transposed ? x.transpose(1, 2) : x)
                             .matmul(p.second_transposed ? w.transpose(1, 2) : w);
        const auto gradients = z.gradient({x, w}, there(g, {p.batch, p.rows, p.columns}, type));
        expect(z, y, double(p.terms));
        expect(gradients[0], da, double(p.columns));
        expect(gradients[1], db, double(p.rows));
      }
    }
  });
}

TEST_P(DeviceLayers, ConvolutionsAndTheirGradients) {
  struct Convolution {
    int64_t in, out, groups, size, kernel, stride, padding, dilation;
  };
  both_ways([&] {
    for (const Convolution& c : {Convolution{3, 4, 1, 7, 3, 1, 1, 1},
                                 {4, 8, 1, 9, 3, 2, 0, 1},
                                 {4, 4, 4, 6, 3, 1, 1, 1},
                                 {4, 6, 2, 8, 2, 1, 2, 2},
                                 {8, 8, 1, 5, 1, 1, 0, 1}}) {
      for (const DType type : {DType::F32, DType::BF16}) {
        SCOPED_TRACE(std::string(name(type)) + " in " + std::to_string(c.in) + " kernel " +
                     std::to_string(c.kernel));
        constexpr int64_t kBatch = 2;
        const int64_t each = c.in / c.groups, of_group = c.out / c.groups,
                      result =
                          (c.size + 2 * c.padding - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
        const Dims in{kBatch, c.in, c.size, c.size}, kernel{c.out, each, c.kernel, c.kernel},
            out{kBatch, c.out, result, result};
        const Values x = numbers(in, 5), w = numbers(kernel, 7), g = numbers(out, 3);
        Values y(g.size()), dx(x.size()), dw(w.size());
        for (int64_t n = 0; n < kBatch; ++n) {
          for (int64_t o = 0; o < c.out; ++o) {
            for (int64_t h = 0; h < result; ++h) {
              for (int64_t v = 0; v < result; ++v) {
                const auto to = size_t(((n * c.out + o) * result + h) * result + v);
                for (int64_t i = 0; i < each; ++i) {
                  for (int64_t kh = 0; kh < c.kernel; ++kh) {
                    for (int64_t kw = 0; kw < c.kernel; ++kw) {
                      const int64_t row = h * c.stride + kh * c.dilation - c.padding,
                                    column = v * c.stride + kw * c.dilation - c.padding;
                      if (row < 0 || row >= c.size || column < 0 || column >= c.size) continue;
                      const int64_t channel = o / of_group * each + i;
                      const auto from = size_t(((n * c.in + channel) * c.size + row) * c.size +
                                               column),
                                 tap = size_t(((o * each + i) * c.kernel + kh) * c.kernel + kw);
                      y[to] += x[from] * w[tap];
                      dx[from] += g[to] * w[tap];
                      dw[tap] += g[to] * x[from];
                    }
                  }
                }
              }
            }
          }
        }
        const Tensor a = there(x, in, type), b = there(w, kernel, type);
        const Tensor z = a.conv2d(
            b, {},
            {.groups = c.groups, .stride = c.stride, .dilation = c.dilation, .padding = c.padding});
        const auto gradients = z.gradient({a, b}, there(g, out, type));
        const auto taps = double(c.kernel * c.kernel);
        expect(z, y, double(each) * taps);
        expect(gradients[0], dx, double(of_group) * taps);
        expect(gradients[1], dw, double(kBatch * result * result));
      }
    }
  });
}

// Weights of 16 bits may be rounded before they are multiplied with the values, so bounds are wide.
TEST_P(DeviceLayers, AttentionWithSharedHeads) {
  both_ways([&] {
    for (const bool causal : {false, true}) {
      for (const DType type : {DType::F32, DType::BF16, DType::F16}) {
        SCOPED_TRACE(std::string(name(type)) + (causal ? " causal" : ""));
        constexpr int64_t kHeads = 4, kShared = 2, kLength = 16, kWidth = 16;
        const Dims many{1, kHeads, kLength, kWidth}, few{1, kShared, kLength, kWidth};
        const Values q = numbers(many, 5), k = numbers(few, 7), v = numbers(few, 3);
        Values want(q.size());
        for (int64_t h = 0; h < kHeads; ++h) {
          const int64_t s = h / (kHeads / kShared);
          for (int64_t i = 0; i < kLength; ++i) {
            Values weights;
            double sum = 0;
            for (int64_t j = 0; j < (causal ? i + 1 : kLength); ++j) {
              double score = 0;
              for (int64_t e = 0; e < kWidth; ++e)
                score += q[size_t((h * kLength + i) * kWidth + e)] *
                         k[size_t((s * kLength + j) * kWidth + e)];
              weights.push_back(std::exp(score / 4));
              sum += weights.back();
            }
            for (int64_t e = 0; e < kWidth; ++e) {
              double value = 0;
              for (size_t j = 0; j < weights.size(); ++j)
                value += weights[j] / sum * v[size_t((s * kLength + int64_t(j)) * kWidth + e)];
              want[size_t((h * kLength + i) * kWidth + e)] = value;
            }
          }
        }
        const Tensor y =
            there(q, many, type)
                .scaled_dot_product_attention(there(k, few, type), there(v, few, type), {},
                                              {.is_causal = causal, .enable_gqa = true});
        y.realize();
        if (!device().executes()) continue;
        const Values got = y.to_vector<double>();
        const double bound = type == DType::F32 ? 1e-5 : type == DType::F16 ? 4e-3 : 2e-2;
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got[i], want[i], bound) << "element " << i;
      }
    }
  });
}

TINYSHARD_ON_EVERY_DEVICE(DeviceLayers);

}  // namespace
}  // namespace tinyshard::test::layers_test
