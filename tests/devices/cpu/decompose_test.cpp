// Factors of matrices are those that they have to be, of any size and type, and the same bits for any
// number of threads and whichever of them are asked for together.
#include "devices/cpu/decompose.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype/half.h"
#include "core/runtime/device.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard::decompose_test {
namespace {

constexpr DecomposeArg kAll[] = {{Factor::Q}, {Factor::R}, {Factor::U},       {Factor::U, false},
                                 {Factor::S}, {Factor::V}, {Factor::V, false}};

struct Shape {
  int64_t rows, columns;
};

Shape shape_of(const DecomposeSpec& spec, DecomposeArg factor) {
  const int64_t m = spec.m, n = spec.n, least = std::min(m, n);
  switch (factor.factor) {
    case Factor::Q:
      return {m, m};
    case Factor::R:
      return {m, n};
    case Factor::U:
      return {m, factor.full ? m : least};
    case Factor::S:
      return {1, least};
    default:
      return {factor.full ? n : least, n};
  }
}

using Bytes = std::vector<char>;

Bytes numbers(const DecomposeSpec& spec) {
  const auto count = size_t(spec.matrices * spec.m * spec.n);
  Bytes bytes(count * itemsize(spec.dtype));
  for (size_t i = 0; i < count; ++i) {
    const double value = 3 * std::sin(double(i * i + 5 * i));
    const auto narrow = float(value);
    const uint16_t half = spec.dtype == DType::F16 ? f64_to_f16(value) : f64_to_bf16(value);
    const void* from = spec.dtype == DType::F64   ? static_cast<const void*>(&value)
                       : spec.dtype == DType::F32 ? static_cast<const void*>(&narrow)
                                                  : &half;
    std::memcpy(&bytes[i * itemsize(spec.dtype)], from, itemsize(spec.dtype));
  }
  return bytes;
}

// The memory behind each factor and behind the scratch memory is as it was.
std::vector<Bytes> factors(const DecomposeSpec& spec, const Bytes& x,
                           const std::vector<DecomposeArg>& asked, int threads) {
  ThreadPool pool(threads);
  constexpr size_t kBehind = 64;
  std::vector<Bytes> results;
  std::vector<void*> places;
  for (const DecomposeArg& factor : asked) {
    const Shape shape = shape_of(spec, factor);
    const auto count = size_t(spec.matrices * shape.rows * shape.columns);
    results.emplace_back(count * itemsize(spec.dtype) + kBehind, char(77));
  }
  for (Bytes& result : results) places.push_back(result.data());
  struct alignas(64) Line {
    char bytes[64];
  };
  const auto lines = size_t(decompose_scratch_bytes(spec, asked, threads) / 64);
  const auto scratch = std::make_unique<Line[]>(lines + 1);
  std::memset(&scratch[lines], 77, sizeof(Line));
  decompose(spec, x.data(), asked, places.data(), scratch.get(), pool);
  const auto untouched = [](char c) { return c == 77; };
  EXPECT_TRUE(std::ranges::all_of(scratch[lines].bytes, untouched));
  for (Bytes& result : results) {
    EXPECT_TRUE(std::all_of(result.end() - kBehind, result.end(), untouched));
    result.resize(result.size() - kBehind);
  }
  return results;
}

std::vector<double> f64_of(const Bytes& bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

constexpr Shape kShapes[] = {{1, 1}, {1, 7}, {7, 1}, {4, 4}, {9, 5}, {5, 9}, {33, 17}, {16, 16}};

TEST(Decompose, FactorsMakeTheMatrix) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(std::to_string(shape.rows) + " by " + std::to_string(shape.columns));
    const DecomposeSpec spec{DType::F64, 3, shape.rows, shape.columns};
    const int64_t m = spec.m, n = spec.n, k = std::min(m, n);
    const Bytes x = numbers(spec);
    const std::vector<Bytes> all = factors(spec, x, {std::begin(kAll), std::end(kAll)}, 2);
    const std::vector<double> matrix = f64_of(x), q = f64_of(all[0]), r = f64_of(all[1]),
                              u = f64_of(all[2]), u_first = f64_of(all[3]), s = f64_of(all[4]),
                              v = f64_of(all[5]), v_first = f64_of(all[6]);
    for (int64_t b = 0; b < spec.matrices; ++b) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double qr = 0, usv = 0;
          for (int64_t l = 0; l < m; ++l)
            qr += q[size_t((b * m + i) * m + l)] * r[size_t((b * m + l) * n + j)];
          for (int64_t l = 0; l < k; ++l)
            usv += u_first[size_t((b * m + i) * k + l)] * s[size_t(b * k + l)] *
                   v_first[size_t((b * k + l) * n + j)];
          EXPECT_NEAR(qr, matrix[size_t((b * m + i) * n + j)], 1e-12);
          EXPECT_NEAR(usv, matrix[size_t((b * m + i) * n + j)], 1e-12);
          if (i > j) {
            EXPECT_EQ(r[size_t((b * m + i) * n + j)], 0);
          }
        }
      }
      auto expect_orthogonal = [&](const std::vector<double>& a, int64_t side) {
        for (int64_t i = 0; i < side; ++i) {
          for (int64_t j = 0; j < side; ++j) {
            double sum = 0;
            for (int64_t l = 0; l < side; ++l)
              sum += a[size_t((b * side + l) * side + i)] * a[size_t((b * side + l) * side + j)];
            EXPECT_NEAR(sum, i == j, 1e-12);
          }
        }
      };
      expect_orthogonal(q, m), expect_orthogonal(u, m), expect_orthogonal(v, n);
      for (int64_t l = 0; l < k; ++l) {
        EXPECT_GE(s[size_t(b * k + l)], 0);
        if (l > 0) {
          EXPECT_LE(s[size_t(b * k + l)], s[size_t(b * k + l - 1)]);
        }
        for (int64_t i = 0; i < m; ++i)
          EXPECT_EQ(u[size_t((b * m + i) * m + l)], u_first[size_t((b * m + i) * k + l)]);
        for (int64_t j = 0; j < n; ++j)
          EXPECT_EQ(v[size_t((b * n + l) * n + j)], v_first[size_t((b * k + l) * n + j)]);
      }
    }
  }
}

TEST(Decompose, EachFactorIsTheSameAloneAndForAnyNumberOfThreads) {
  for (DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
    for (const Shape& shape : kShapes) {
      const DecomposeSpec spec{dtype, 5, shape.rows, shape.columns};
      const Bytes x = numbers(spec);
      const std::vector<Bytes> all = factors(spec, x, {std::begin(kAll), std::end(kAll)}, 1);
      for (int threads : {1, 3, 8}) {
        EXPECT_EQ(factors(spec, x, {std::begin(kAll), std::end(kAll)}, threads), all) << threads;
        for (size_t i = 0; i < std::size(kAll); ++i)
          EXPECT_EQ(factors(spec, x, {kAll[i]}, threads)[0], all[i]) << threads << " " << i;
      }
    }
  }
}

// A tall matrix of few columns: Q takes much memory and little time.
TEST(Decompose, LaunchesAllocateNothing) {
  const std::unique_ptr<Device> cpu = make_cpu_device(0, 1);
  for (int64_t rows : {100, 2000}) {
    const UOp x = UOp::make(Op::Buffer, DType::F32, {}, Dims{1, rows, 2});
    const LibraryCall call = row_major_call(
        UOp::make(Op::Decompose, DType::F32, {x}, to_ints(DecomposeArg{Factor::R, true})));
    const std::unique_ptr<Program> program = cpu->library(call);
    std::vector<float> matrix(size_t(rows * 2), 3.f), r(matrix.size());
    void* buffers[] = {matrix.data(), r.data()};
    const MemoryStats before = cpu->memory();
    program->launch(buffers, nullptr);
    EXPECT_EQ(cpu->memory().allocations, before.allocations) << rows;
    EXPECT_NE(program->scratch(), nullptr);
    EXPECT_NEAR(std::abs(r[0]), 3 * std::sqrt(double(rows)), 1e-2);
  }
}

TEST(Decompose, AColumnOfZerosHasADirection) {
  const DecomposeSpec spec{DType::F64, 1, 3, 2};
  const std::vector<double> x{1, 0, 2, 0, 2, 0};
  Bytes bytes(x.size() * sizeof(double));
  std::memcpy(bytes.data(), x.data(), bytes.size());
  const std::vector<Bytes> found = factors(spec, bytes, {{Factor::U}, {Factor::S}}, 1);
  EXPECT_EQ(f64_of(found[1]), (std::vector<double>{3, 0}));
  const std::vector<double> u = f64_of(found[0]);
  for (size_t column : {1, 2}) {
    double along = 0, length = 0;
    for (size_t row = 0; row < 3; ++row) {
      along += u[3 * row] * u[3 * row + column];
      length += u[3 * row + column] * u[3 * row + column];
    }
    EXPECT_NEAR(along, 0, 1e-15);
    EXPECT_NEAR(length, 1, 1e-15);
  }
}

}  // namespace
}  // namespace tinyshard::decompose_test
