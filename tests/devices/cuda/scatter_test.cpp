// Scatter-add on a GPU against a loop: embeddings, gathers along any axis, types, bad indices.
#include <optional>
#include <random>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/uop/args.h"
#include "tests/devices/cuda/gpu_test.h"

namespace tinyshard::test::scatter_test {
namespace {

using CudaScatter = GpuTest;

// src [outer, rows_in, inner] into [outer, rows_out, inner]; index of the same shape as src, or one
// per row where `shared`. With a base, that is the third operand.
LibraryCall call_of(DType dtype, int64_t outer, int64_t rows_in, int64_t rows_out, int64_t inner,
                    bool shared, std::optional<DType> base = {}) {
  static int64_t next = 2000;
  UOp index = UOp::make(Op::Buffer, DType::I32, {}, Dims{next++, outer, rows_in, inner});
  UOp src = UOp::make(Op::Buffer, dtype, {}, Dims{next++, outer, rows_in, inner});
  std::vector<UOp> sources{index, src};
  if (base)
    sources.push_back(UOp::make(Op::Buffer, *base, {}, Dims{next++, outer, rows_out, inner}));
  LibraryCall call = row_major_call(UOp::make(Op::ScatterAdd, dtype, sources, Dims{1, rows_out}));
  if (shared) call.operands[0].strides = {rows_in, 1, 0};
  return call;
}

template <class T>
void check(Device& gpu, DType dtype, int64_t outer, int64_t rows_in, int64_t rows_out,
           int64_t inner, bool shared, bool based = false) {
  std::mt19937 random(7);
  std::vector<int32_t> index(size_t(outer * rows_in * (shared ? 1 : inner)));
  for (int32_t& i : index) i = int32_t(random() % uint32_t(rows_out));
  std::vector<T> src(size_t(outer * rows_in * inner)), want(size_t(outer * rows_out * inner));
  for (T& x : src) x = T(int(random() % 17) - 8);
  std::vector<T> base(want.size());
  for (T& x : base) x = T(int(random() % 9));
  if (based) want = base;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t r = 0; r < rows_in; ++r) {
      for (int64_t i = 0; i < inner; ++i) {
        int64_t at = index[size_t(shared ? o * rows_in + r : (o * rows_in + r) * inner + i)];
        want[size_t((o * rows_out + at) * inner + i)] += src[size_t((o * rows_in + r) * inner + i)];
      }
    }
  }
  LibraryCall call = call_of(dtype, outer, rows_in, rows_out, inner, shared,
                             based ? std::optional(dtype) : std::nullopt);
  ASSERT_TRUE(gpu.supports(call, nullptr));
  OnGpu<int32_t> on_index(gpu, index);
  OnGpu<T> on_src(gpu, src), on_base(gpu, base), out(gpu, want.size());
  std::vector<void*> buffers{on_index.get(), on_src.get()};
  if (based) buffers.push_back(on_base.get());
  buffers.push_back(out.get());
  auto program = gpu.library(call);
  program->launch(buffers.data(), nullptr);
  EXPECT_EQ(out.values(), want) << name(dtype) << ' ' << outer << ' ' << rows_in << ' ' << rows_out
                                << ' ' << inner << ' ' << shared << ' ' << based;
  if (!based) return;
  buffers.back() = on_base.get();
  program->launch(buffers.data(), nullptr);
  EXPECT_EQ(on_base.values(), want) << "in place";
}

constexpr int64_t kShapes[][4] = {{1, 1, 1, 1},     {1, 100, 70, 64},    {2, 33, 65, 96},
                                  {3, 50, 7, 5},    {300, 1, 50, 1},     {1, 5, 100, 300},
                                  {2, 1000, 3, 32}, {1, 5000, 300, 768}, {2, 3000, 77, 512}};

TEST_F(CudaScatter, SumsEveryRow) {
  for (auto [outer, rows_in, rows_out, inner] : kShapes) {
    for (bool shared : {false, true}) {
      check<float>(*gpu, DType::F32, outer, rows_in, rows_out, inner, shared);
      check<double>(*gpu, DType::F64, outer, rows_in, rows_out, inner, shared);
      check<int32_t>(*gpu, DType::I32, outer, rows_in, rows_out, inner, shared);
      check<int64_t>(*gpu, DType::I64, outer, rows_in, rows_out, inner, shared);
      check<int8_t>(*gpu, DType::I8, outer, rows_in, rows_out, inner, shared);
      check<uint16_t>(*gpu, DType::U16, outer, rows_in, rows_out, inner, shared);
    }
  }
}

TEST_F(CudaScatter, StartsFromABase) {
  for (auto [outer, rows_in, rows_out, inner] : kShapes) {
    for (bool shared : {false, true}) {
      check<float>(*gpu, DType::F32, outer, rows_in, rows_out, inner, shared, true);
      check<double>(*gpu, DType::F64, outer, rows_in, rows_out, inner, shared, true);
      check<int64_t>(*gpu, DType::I64, outer, rows_in, rows_out, inner, shared, true);
      check<int8_t>(*gpu, DType::I8, outer, rows_in, rows_out, inner, shared, true);
    }
  }
}

// The last row that names a place stays there, and what no row names keeps the base.
template <class T>
void check_writes(Device& gpu, DType dtype, int64_t outer, int64_t rows_in, int64_t rows_out,
                  int64_t inner, bool shared) {
  std::mt19937 random(11);
  std::vector<int32_t> index(size_t(outer * rows_in * (shared ? 1 : inner)));
  for (int32_t& i : index) i = int32_t(random() % uint32_t(rows_out + 2)) - 1;
  std::vector<T> src(size_t(outer * rows_in * inner)), base(size_t(outer * rows_out * inner));
  for (T& x : src) x = T(random());
  for (T& x : base) x = T(random());
  std::vector<T> want = base;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t r = 0; r < rows_in; ++r) {
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t from = (o * rows_in + r) * inner + i;
        const int64_t at = index[size_t(shared ? o * rows_in + r : from)];
        if (at >= 0 && at < rows_out)
          want[size_t((o * rows_out + at) * inner + i)] = src[size_t(from)];
      }
    }
  }
  LibraryCall call = call_of(dtype, outer, rows_in, rows_out, inner, shared, dtype);
  call.node = UOp::make(Op::ScatterAdd, dtype, call.node->src(), writing_scatter(1, rows_out));
  ASSERT_TRUE(gpu.supports(call, nullptr));
  OnGpu<int32_t> on_index(gpu, index);
  OnGpu<T> on_src(gpu, src), on_base(gpu, base), out(gpu, want.size());
  void* buffers[] = {on_index.get(), on_src.get(), on_base.get(), out.get()};
  auto program = gpu.library(call);
  program->launch(buffers, nullptr);
  EXPECT_EQ(out.values(), want) << name(dtype) << ' ' << outer << ' ' << rows_in << ' ' << rows_out
                                << ' ' << inner << ' ' << shared;
  buffers[3] = on_base.get();
  program->launch(buffers, nullptr);
  EXPECT_EQ(on_base.values(), want) << "in place";
}

TEST_F(CudaScatter, WritesRows) {
  for (auto [outer, rows_in, rows_out, inner] : kShapes) {
    for (bool shared : {false, true}) {
      check_writes<uint8_t>(*gpu, DType::Bool, outer, rows_in, rows_out, inner, shared);
      check_writes<uint16_t>(*gpu, DType::BF16, outer, rows_in, rows_out, inner, shared);
      check_writes<uint32_t>(*gpu, DType::F32, outer, rows_in, rows_out, inner, shared);
      check_writes<uint64_t>(*gpu, DType::I64, outer, rows_in, rows_out, inner, shared);
    }
  }
}

TEST_F(CudaScatter, WidensABaseOfSixteenBits) {
  constexpr int64_t kRows = 75, kInner = 300;
  for (DType dtype : {DType::BF16, DType::F16}) {
    LibraryCall call = call_of(DType::F32, 1, 2, kRows, kInner, true, dtype);
    ASSERT_TRUE(gpu->supports(call, nullptr));
    std::vector<uint16_t> base(kRows * kInner);
    std::vector<float> want(base.size());
    for (size_t i = 0; i < base.size(); ++i) {
      want[i] = float(i % 200) / 8;
      base[i] = dtype == DType::BF16 ? f32_to_bf16(want[i]) : f32_to_f16(want[i]);
    }
    for (size_t i = 0; i < kInner; ++i) want[70 * kInner + i] += 0.001F + 0.001F;
    OnGpu<int32_t> index(*gpu, std::vector<int32_t>(2, 70));
    OnGpu<float> src(*gpu, std::vector<float>(2 * kInner, 0.001F)), out(*gpu, want.size());
    OnGpu<uint16_t> on_base(*gpu, base);
    void* buffers[] = {index.get(), src.get(), on_base.get(), out.get()};
    auto program = gpu->library(call);
    program->launch(buffers, nullptr);
    std::vector<float> got = out.values();
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 4e-6) << name(dtype) << " element " << i;
  }
}

TEST_F(CudaScatter, SixteenBitFloatsSumInThirtyTwo) {
  // 300 ones: bf16 itself would stop at 256.
  LibraryCall call = call_of(DType::BF16, 1, 300, 2, 32, true);
  OnGpu<int32_t> index(*gpu, std::vector<int32_t>(300, 1));
  OnGpu<uint16_t> src(*gpu, std::vector<uint16_t>(300 * 32, f32_to_bf16(1))), out(*gpu, 64);
  void* buffers[] = {index.get(), src.get(), out.get()};
  auto program = gpu->library(call);
  program->launch(buffers, nullptr);
  EXPECT_EQ(bf16_to_f32(out.values()[0]), 0);
  EXPECT_EQ(bf16_to_f32(out.values()[32]), 300);
}

TEST_F(CudaScatter, AnIndexOutOfRangeIsAddedNowhere) {
  for (int32_t bad : {-1, 9, 1 << 20, INT32_MIN, INT32_MAX}) {
    for (bool shared : {false, true}) {
      int64_t inner = shared ? 32 : 1;
      LibraryCall call = call_of(DType::F32, 1, 40, 9, inner, shared);
      std::vector<int32_t> values(40, 2);
      values[35] = bad;
      OnGpu<int32_t> index(*gpu, values);
      OnGpu<float> src(*gpu, std::vector<float>(size_t(40 * inner), 1)),
          out(*gpu, size_t(9 * inner));
      void* buffers[] = {index.get(), src.get(), out.get()};
      auto program = gpu->library(call);
      program->launch(buffers, nullptr);
      std::vector<float> sums = out.values();
      for (int64_t i = 0; i < 9 * inner; ++i)
        EXPECT_EQ(sums[size_t(i)], i / inner == 2 ? 39 : 0) << bad << " at " << i;
    }
  }
}

}  // namespace
}  // namespace tinyshard::test::scatter_test
