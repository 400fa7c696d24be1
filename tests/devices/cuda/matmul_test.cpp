// Products on cuBLASLt against double precision: types, transposes, strides, batches; and again
// from a recording whose operands have changed.
#include "tests/devices/cuda/matmul_case.h"

namespace tinyshard::test::matmul_test {
namespace {

void expect_product(const Case& c, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                    const std::vector<std::byte>& out) {
  int64_t batches = product(c.batch);
  double worst = 0;
  for (int64_t g = 0; g < batches; ++g) {
    int64_t at_a = c.a.offset, at_b = c.b.offset, rest = g;
    for (size_t i = c.batch.size(); i-- > 0; rest /= c.batch[i]) {
      at_a += rest % c.batch[i] * c.a.strides[i];
      at_b += rest % c.batch[i] * c.b.strides[i];
    }
    size_t r = c.batch.size();
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0, size = 0;
        for (int64_t x = 0; x < c.k; ++x) {
          double p = decode(c.type, a, size_t(at_a + i * c.a.strides[r] + x * c.a.strides[r + 1])) *
                     decode(c.type, b, size_t(at_b + x * c.b.strides[r] + j * c.b.strides[r + 1]));
          sum += p;
          size += std::abs(p);
        }
        double got = decode(c.result, out, size_t((g * c.m + i) * c.n + j));
        worst = std::max(worst, std::abs(got - sum) / (size + 1e-30));
      }
    }
  }
  EXPECT_LT(worst, tolerance(c.result))
      << name(c.type) << "->" << name(c.result) << " " << c.m << " x " << c.k << " x " << c.n;
}

void check(Device& gpu, const Case& c) {
  LibraryCall call = call_of(c);
  std::string why;
  ASSERT_TRUE(gpu.supports(call, &why)) << why;
  auto a = random_operand(c, c.a, 1), b = random_operand(c, c.b, 2);
  OnGpu<std::byte> on_a(gpu, a), on_b(gpu, b);
  OnGpu<std::byte> out(gpu, size_t(product(c.batch) * c.m * c.n) * itemsize(c.result));
  auto program = gpu.library(call);
  void* buffers[] = {on_a.get(), on_b.get(), out.get()};
  program->launch(buffers, nullptr);
  expect_product(c, a, b, out.values());
}

TEST_F(CudaMatmul, TypesTransposesAndStrides) {
  std::pair<DType, DType> types[] = {{DType::F32, DType::F32},   {DType::F64, DType::F64},
                                     {DType::F16, DType::F16},   {DType::F16, DType::F32},
                                     {DType::BF16, DType::BF16}, {DType::BF16, DType::F32}};
  int64_t sizes[][3] = {{1, 1, 1}, {1, 7, 5}, {5, 1, 3}, {3, 5, 1}, {17, 33, 65}, {64, 128, 32}};
  for (auto [type, result] : types) {
    for (auto [m, k, n] : sizes) {
      for (int variant = 0; variant < 16; ++variant) {
        Case c{type, result, {}, m, k, n, {}, {}};
        c.a = view({}, m, k, variant & 1, variant & 4 ? 3 : 0, variant & 8 ? 5 : 0);
        c.b = view({}, k, n, variant & 2, variant & 4 ? 1 : 0, variant & 8 ? 3 : 0);
        check(*gpu, c);
      }
    }
  }
}

TEST_F(CudaMatmul, Batches) {
  for (DType type : {DType::F32, DType::BF16}) {
    Case c{type, type, {2, 3}, 24, 16, 40, {}, {}};
    c.a = view(c.batch, 24, 16, false);
    c.b = view(c.batch, 16, 40, true);
    check(*gpu, c);
    c.b.strides[0] = c.b.strides[1] = 0;  // all share b
    check(*gpu, c);
    // Heads: [batch, time, heads, width] seen as [batch, heads, time, width], keys transposed.
    Case heads{type, type, {4, 3}, 12, 8, 12, {}, {}};
    heads.a = {0, {4, 3, 12, 8}, {12 * 24, 8, 24, 1}};
    heads.b = {0, {4, 3, 8, 12}, {12 * 24, 8, 1, 24}};
    check(*gpu, heads);
  }
}

TEST_F(CudaMatmul, RefusesWhatItCannotDo) {
  auto refused = [&](const Case& c, const std::string& reason) {
    std::string why;
    EXPECT_FALSE(gpu->supports(call_of(c), &why));
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  };
  Case c{DType::F32, DType::F32, {}, 4, 4, 4, view({}, 4, 4, false), view({}, 4, 4, false)};
  Case apart = c;
  apart.a.strides = {8, 2};
  refused(apart, "contiguous");
  Case broadcast = c;
  broadcast.b.strides = {0, 1};
  refused(broadcast, "contiguous");
  Case integers = c;
  integers.type = integers.result = DType::I32;
  refused(integers, "no product");
  Case many{DType::F32, DType::F32, {64, 48}, 4, 4, 4, {}, {}};
  many.a = {0, {64, 48, 4, 4}, {48 * 32, 4, 192, 1}};
  many.b = view(many.batch, 4, 4, false);
  many.a.strides[0] = 48 * 16 * 3;
  refused(many, "calls");
}

TEST_F(CudaMatmul, ARecordedProductTakesOtherOperands) {
  for (DType type : {DType::F32, DType::BF16}) {
    Case c{type, type, {}, 128, 256, 192, view({}, 128, 256, false), view({}, 256, 192, false)};
    auto a = random_operand(c, c.a, 1), b = random_operand(c, c.b, 2),
         a2 = random_operand(c, c.a, 3);
    OnGpu<std::byte> on_a(*gpu, a), on_b(*gpu, b), on_a2(*gpu, a2);
    OnGpu<std::byte> out(*gpu, size_t(c.m * c.n) * itemsize(c.result));
    auto program = gpu->library(call_of(c));
    void* buffers[] = {on_a.get(), on_b.get(), out.get()};
    program->launch(buffers, nullptr);
    gpu->begin_recording();
    program->launch(buffers, nullptr);
    auto recording = gpu->end_recording();
    recording->launch();
    expect_product(c, a, b, out.values());
    buffers[0] = on_a2.get();
    void* const* changed[] = {buffers};
    EXPECT_TRUE(recording->update(changed)) << "recorded as a whole again";
    recording->launch();
    expect_product(c, a2, b, out.values());
  }
}

}  // namespace
}  // namespace tinyshard::test::matmul_test
