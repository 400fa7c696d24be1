// Multiplies one or two rows by a matrix, as decoding does: loops make them on a CPU. Their values
// are those of sums in f64, for each type, for a matrix that lies along the sums or across them,
// with what follows a product and with sizes known at the call alone; and any number of threads
// gives the same bits, which copies of this program print.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/tensor/explain.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard {
namespace {

std::string g_program;

// Values from -2 to 2 without a pattern.
Tensor data(const Ints& shape, DType dtype, double phase = 0) {
  Tensor x = Tensor::arange(product(shape.values)).cast(DType::F64) * 1.7 + phase;
  return (x.sin() + (x * 0.37).cos()).cast(dtype).reshape(shape).contiguous().realize();
}

std::vector<double> doubles(const Tensor& x) { return x.cast(DType::F64).to_vector<double>(); }

// Sums in f64, and how far the order of its sums may put a product off them.
struct Sums {
  std::vector<double> values, magnitudes;
  double order = 0;  // in units of f32 and of the magnitude
};
// a [rows, terms] times b [terms, columns], both row-major.
Sums sums(const std::vector<double>& a, const std::vector<double>& b, size_t rows, size_t terms,
          size_t columns) {
  Sums out{std::vector<double>(rows * columns), std::vector<double>(rows * columns),
           4 + 2 * std::sqrt(double(terms))};
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < terms; ++k) {
      for (size_t j = 0; j < columns; ++j) {
        const double term = a[i * terms + k] * b[k * columns + j];
        out.values[i * columns + j] += term;
        out.magnitudes[i * columns + j] += std::abs(term);
      }
    }
  }
  return out;
}

double precision(DType dtype) {
  return dtype == DType::BF16 ? 0x1p-8 : dtype == DType::F16 ? 0x1p-11 : 0x1p-24;
}

void expect_near(const Tensor& actual, const Sums& expected) {
  const std::vector<double> values = doubles(actual);
  ASSERT_EQ(values.size(), expected.values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed = 1.1 * precision(actual.dtype()) * std::abs(expected.values[i]) +
                           expected.order * 0x1p-24 * expected.magnitudes[i] + 1e-7;
    ASSERT_NEAR(values[i], expected.values[i], allowed) << "element " << i;
  }
}

struct Shape {
  int64_t rows, terms, columns;
};
// Nothing divides by a vector; each matrix has more elements than the least that loops take.
constexpr Shape kShapes[] = {
    {1, 131, 129}, {2, 257, 67}, {1, 1021, 17}, {2, 19, 1031}, {1, 63, 4099}};

class FewRows : public ::testing::TestWithParam<DType> {};

TEST_P(FewRows, HaveTheValuesOfSums) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(fmt::format("[{}, {}] x [{}, {}]", s.rows, s.terms, s.terms, s.columns));
    const Tensor x = data({s.rows, s.terms}, GetParam());
    const Tensor along = data({s.columns, s.terms}, GetParam(), 0.3),
                 across = along.T().contiguous();
    across.realize();
    const Sums expected =
        sums(doubles(x), doubles(across), size_t(s.rows), size_t(s.terms), size_t(s.columns));
    const Tensor y = x.matmul(along.T()), z = x.matmul(across), t = along.matmul(x.T()).T();
    EXPECT_EQ(summarize(y).library_calls, 0) << "along the sums";
    EXPECT_EQ(summarize(t).library_calls, 0) << "few columns";
    EXPECT_EQ(summarize(z).library_calls, GetParam() == DType::F32) << "across the sums";
    expect_near(y, expected);
    expect_near(z, expected);
    expect_near(t.contiguous(), expected);
  }
  const Tensor x = data({3, 256}, GetParam()), w = data({256, 256}, GetParam());
  EXPECT_EQ(summarize(x.matmul(w.T())).library_calls, 1) << "three rows";
}

TEST_P(FewRows, OfABatchAreEachItsOwn) {
  const Tensor x = data({3, 1, 131}, GetParam()), w = data({3, 129, 131}, GetParam(), 0.3);
  const Tensor y = x.matmul(w.transpose(1, 2));
  EXPECT_EQ(summarize(y).library_calls, 0);
  for (int64_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    expect_near(y[i], sums(doubles(x[i]), doubles(w[i].T().contiguous()), 1, 131, 129));
  }
}

TEST_P(FewRows, AreRoundedOnceAfterWhatFollows) {
  const Tensor x = data({1, 131}, GetParam()), w = data({129, 131}, GetParam(), 0.3),
               bias = data({129}, GetParam(), 0.6), more = data({1, 129}, GetParam(), 0.9);
  const Sums plain = sums(doubles(x), doubles(w.T().contiguous()), 1, 131, 129);
  auto with = [&](auto&& f) {
    Sums out = plain;
    for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = f(out.values[i], i);
    return out;
  };
  // Ops on 16-bit floats round each: what is added then is a value of the type.
  auto round = [&](double v) {
    return GetParam() == DType::F32 ? v : doubles(Tensor(float(v)).cast(GetParam()))[0];
  };
  const std::vector<double> b = doubles(bias), m = doubles(more);
  auto looser = [&](Sums s) {  // twice rounded
    if (GetParam() != DType::F32) {
      for (size_t i = 0; i < s.values.size(); ++i)
        s.magnitudes[i] += 2 * precision(GetParam()) / (s.order * 0x1p-24) *
                           (std::abs(plain.values[i]) + std::abs(b[i]) + 1);
    }
    return s;
  };
  const Tensor y = x.linear(w.T(), bias);
  expect_near(y, looser(with([&](double v, size_t i) { return v + b[i]; })));
  expect_near(y.relu(), looser(with([&](double v, size_t i) { return std::max(v + b[i], 0.0); })));
  expect_near(x.matmul(w.T()) + more,
              looser(with([&](double v, size_t i) { return round(v) + m[i]; })));
  expect_near(y.gelu(), looser(with([&](double v, size_t i) {
                const double s = v + b[i];
                return 0.5 * s * (1 + std::tanh(0.7978845608028654 * (s + 0.044715 * s * s * s)));
              })));
}

TEST_P(FewRows, TakeSizesKnownAtTheCall) {
  constexpr int64_t kMost = 777, kWidth = 65;
  const Tensor keys = data({kMost, kWidth}, GetParam()), query = data({1, kWidth}, GetParam(), 0.2),
               weights = data({1, kMost}, GetParam(), 0.4);
  Variable n("n", 1, kMost);
  Jit step = [&](Variable p) {
    const Tensor seen = keys[Slice(0, p)];
    // A row of as many columns as there are keys, and a row of so many terms.
    return std::pair(query.matmul(seen.T()).cast(DType::F32).abs().sum(1),
                     weights[{Slice(), Slice(0, p)}].matmul(seen));
  };
  const std::vector<double> k = doubles(keys), q = doubles(query), w = doubles(weights);
  for (int64_t p : {1, 2, 100, 776, 777}) {
    SCOPED_TRACE(p);
    const size_t size = size_t(p);
    const std::vector<double> seen(k.begin(), k.begin() + long(size * kWidth)),
        first(w.begin(), w.begin() + long(size));
    auto [scores, mean] = step(n.bind(p));
    double expected = 0;
    for (size_t i = 0; i < size; ++i) {
      double score = 0;
      for (size_t d = 0; d < kWidth; ++d) score += q[d] * seen[i * kWidth + d];
      expected += std::abs(score);
    }
    EXPECT_NEAR(scores.item<float>(), expected,
                2 * precision(GetParam()) * expected + 1e-5 * expected);
    expect_near(mean, sums(first, seen, 1, size, kWidth));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FewRows, ::testing::Values(DType::F32, DType::BF16, DType::F16),
                         [](const auto& info) { return std::string(name(info.param)); });

// --- bits ----------------------------------------------------------------------------------------

// Returns a number for the bits of products that are long enough to be split among threads.
uint64_t bits() {
  uint64_t hash = 1469598103934665603U;
  for (DType dtype : {DType::F32, DType::BF16}) {
    for (const Shape& s : {Shape{1, 1021, 517}, Shape{2, 515, 1031}, Shape{1, 300001, 1}}) {
      const Tensor x = data({s.rows, s.terms}, dtype), w = data({s.columns, s.terms}, dtype, 0.3);
      const Tensor y = x.matmul(w.T()).cast(DType::F32), z = x.matmul(w.T().contiguous());
      for (const Tensor& t : {y, z.cast(DType::F32)}) {
        for (float value : t.to_vector<float>()) {
          uint32_t word = 0;
          std::memcpy(&word, &value, sizeof word);
          hash = (hash ^ word) * 1099511628211U;
        }
      }
    }
  }
  return hash;
}

std::string bits_with(int threads) {
  const std::string command = fmt::format("TS_THREADS={} '{}' --bits", threads, g_program);
  std::FILE* out = popen(command.c_str(), "r");
  if (!out) return "no process";
  std::array<char, 64> line{};
  const bool read = std::fgets(line.data(), line.size(), out) != nullptr;
  return pclose(out) == 0 && read ? line.data() : "failed";
}

TEST(FewRowsBits, AreTheSameForAnyNumberOfThreads) {
  const std::string one = bits_with(1);
  EXPECT_GT(one.size(), 8U) << one;
  EXPECT_EQ(bits_with(2), one);
  EXPECT_EQ(bits_with(5), one);
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--bits") {
    std::cout << tinyshard::bits() << std::endl;
    return 0;
  }
  tinyshard::g_program = argv[0];
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
