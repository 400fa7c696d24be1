// Products as library calls for tests: typed random operands as views of any layout.
#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype/half.h"
#include "devices/cuda/cublaslt.h"
#include "tests/devices/cuda/gpu_test.h"

namespace tinyshard::test {

class CudaMatmul : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!cuda::CublasLt::get().found()) GTEST_SKIP() << cuda::CublasLt::get().why_not();
  }
};

inline std::vector<std::byte> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * itemsize(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    auto put = [&](auto x) { std::memcpy(&bytes[i * sizeof(x)], &x, sizeof(x)); };
    if (dtype == DType::F64) put(values[i]);
    if (dtype == DType::F32) put(float(values[i]));
    if (dtype == DType::F16) put(f32_to_f16(float(values[i])));
    if (dtype == DType::BF16) put(f32_to_bf16(float(values[i])));
  }
  return bytes;
}

inline double decode(DType dtype, const std::vector<std::byte>& bytes, size_t i) {
  auto get = [&](auto x) {
    std::memcpy(&x, &bytes[i * sizeof(x)], sizeof(x));
    return x;
  };
  if (dtype == DType::F64) return get(0.0);
  if (dtype == DType::F32) return get(0.f);
  return dtype == DType::F16 ? f16_to_f32(get(uint16_t{})) : bf16_to_f32(get(uint16_t{}));
}

struct Case {
  DType type, result;
  Dims batch;
  int64_t m, k, n;
  StridedView a, b;
};

inline StridedView view(const Dims& batch, int64_t rows, int64_t cols, bool transposed,
                        int64_t pad = 0, int64_t offset = 0) {
  StridedView v{offset, batch, Dims(batch.size())};
  int64_t ld = (transposed ? rows : cols) + pad, stride = ld * (transposed ? cols : rows);
  for (size_t i = batch.size(); i-- > 0; stride *= batch[i]) v.strides[i] = stride;
  v.shape.insert(v.shape.end(), {rows, cols});
  v.strides.insert(v.strides.end(), {transposed ? 1 : ld, transposed ? ld : 1});
  return v;
}

inline int64_t extent(const StridedView& v) {
  int64_t last = v.offset;
  for (size_t i = 0; i < v.shape.size(); ++i) last += (v.shape[i] - 1) * v.strides[i];
  return last + 1;
}

inline LibraryCall call_of(const Case& c) {
  static int64_t next = 1000;
  auto source = [&](const StridedView& v) {
    Dims arg{next++};
    arg.insert(arg.end(), v.shape.begin(), v.shape.end());
    return UOp::make(Op::Buffer, c.type, {}, arg);
  };
  UOp node =
      UOp::make(Op::Dot, c.result, {source(c.a), source(c.b)}, Dims{int64_t(c.batch.size())});
  return {node, {c.a, c.b}, {}};
}

inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return 1e-13;
    case DType::F32:
      return 1e-5;
    case DType::F16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

inline std::vector<std::byte> random_operand(const Case& c, const StridedView& v, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(size_t(extent(v)));
  for (double& x : values) x = uniform(random);
  return encode(c.type, values);
}

}  // namespace tinyshard::test
