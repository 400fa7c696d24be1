// Products on cuBLASLt against double precision: types, transposes, strides, batches; and again
// from a recording whose operands have changed.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "core/base/options.h"
#include "core/dtype/half.h"
#include "devices/cuda/cublaslt.h"
#include "tests/devices/cuda/gpu_test.h"

namespace tinyshard::testing {
namespace {

class CudaMatmul : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!cuda::CublasLt::get().found()) GTEST_SKIP() << cuda::CublasLt::get().why_not();
  }
};

std::vector<std::byte> encode(DType dtype, const std::vector<double>& values) {
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

double decode(DType dtype, const std::vector<std::byte>& bytes, size_t i) {
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

StridedView view(const Dims& batch, int64_t rows, int64_t cols, bool transposed, int64_t pad = 0,
                 int64_t offset = 0) {
  StridedView v{offset, batch, Dims(batch.size())};
  int64_t ld = (transposed ? rows : cols) + pad, stride = ld * (transposed ? cols : rows);
  for (size_t i = batch.size(); i-- > 0; stride *= batch[i]) v.strides[i] = stride;
  v.shape.insert(v.shape.end(), {rows, cols});
  v.strides.insert(v.strides.end(), {transposed ? 1 : ld, transposed ? ld : 1});
  return v;
}

int64_t extent(const StridedView& v) {
  int64_t last = v.offset;
  for (size_t i = 0; i < v.shape.size(); ++i) last += (v.shape[i] - 1) * v.strides[i];
  return last + 1;
}

LibraryCall call_of(const Case& c) {
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

double tolerance(DType dtype) {
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

std::vector<std::byte> random_operand(const Case& c, const StridedView& v, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(size_t(extent(v)));
  for (double& x : values) x = uniform(random);
  return encode(c.type, values);
}

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

// --- epilogues: the value of every element is checked, in the type that is stored

double gelu(double v) {
  return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}
double gelu_slope(double v) {
  double t = std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v));
  return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * v * v);
}

// How far a stored value may be from the exact one, made of terms of this size: where the operands
// are not aligned, the library rounds the sum before it adds the bias.
double epilogue_tolerance(DType dtype, double size) { return tolerance(dtype) * (size + 0.1); }

class CudaEpilogue : public CudaMatmul {
 protected:
  struct Run {
    Case c;
    Epilogue epilogue;
    bool both = false;  // the GELU and what precedes it
    int64_t offset = 0, pad = 0;
  };

  LibraryCall call_of_run(const Run& r) {
    LibraryCall plain = call_of(r.c);
    StridedView third{r.offset, {r.c.n}, {1}};
    if (r.epilogue == Epilogue::GeluBackward)
      third = {r.offset, {r.c.m, r.c.n}, {r.c.n + r.pad, 1}};
    Dims arg{next_++};
    arg.insert(arg.end(), third.shape.begin(), third.shape.end());
    UOp source = UOp::make(Op::Buffer, r.c.result, {}, arg);
    std::vector<UOp> src{plain.node.src(0), plain.node.src(1), source};
    auto node = [&](Epilogue e) {
      return UOp::make(Op::Dot, r.c.result, src, Dims{0, int64_t(e)});
    };
    LibraryCall call{node(r.epilogue), {r.c.a, r.c.b, third}, {}};
    if (r.both)
      call.also = {node(r.epilogue == Epilogue::Bias ? Epilogue::BiasGelu : Epilogue::Bias)};
    return call;
  }

  void check(const Run& r) {
    const Case& c = r.c;
    LibraryCall call = call_of_run(r);
    std::string why;
    ASSERT_TRUE(gpu->supports(call, &why)) << why;
    auto a = random_operand(c, c.a, 1), b = random_operand(c, c.b, 2);
    Case like_result = c;
    like_result.type = c.result;
    auto third = random_operand(like_result, call.operands[2], 3);
    size_t bytes = size_t(c.m * c.n) * itemsize(c.result);
    std::vector<std::byte> poison(bytes, std::byte{0xff});
    OnGpu<std::byte> on_a(*gpu, a), on_b(*gpu, b), on_third(*gpu, third), out(*gpu, poison),
        other(*gpu, poison);
    auto program = gpu->library(call);
    void* buffers[] = {on_a.get(), on_b.get(), on_third.get(), out.get(), other.get()};
    program->launch(buffers, nullptr);
    std::vector<std::byte> got = out.values(), got_other = other.values();
    double worst = 0;
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < c.k; ++x)
          sum += decode(c.type, a, size_t(c.a.offset + i * c.a.strides[0] + x * c.a.strides[1])) *
                 decode(c.type, b, size_t(c.b.offset + x * c.b.strides[0] + j * c.b.strides[1]));
        bool whole = r.epilogue == Epilogue::GeluBackward;
        double t = decode(c.result, third,
                          size_t(r.offset + (whole ? i * call.operands[2].strides[0] : 0) + j));
        auto expected = [&](Epilogue e) {
          return e == Epilogue::Bias       ? sum + t
                 : e == Epilogue::BiasGelu ? gelu(sum + t)
                                           : sum * gelu_slope(t);
        };
        auto compare = [&](Epilogue e, const std::vector<std::byte>& values) {
          double want = expected(e), value = decode(c.result, values, size_t(i * c.n + j));
          double error = std::abs(value - want);
          ASSERT_LE(error, epilogue_tolerance(c.result, std::abs(sum) + std::abs(t)))
              << program->describe() << " at " << i << ", " << j << ": " << value << ", not "
              << want;
          worst = std::max(worst, error / (std::abs(want) + 1e-2));
        };
        compare(r.epilogue, got);
        if (r.both) compare(epilogue_of(call.also[0]), got_other);
        if (HasFatalFailure()) return;
      }
    }
    RecordProperty(program->describe(), std::to_string(worst));
    if (std::getenv("TS_PRINT_ERRORS"))
      std::printf("%-80s worst relative error %.2e\n", program->describe().c_str(), worst);
  }

  int64_t next_ = 5000;
};

TEST_F(CudaEpilogue, BiasGeluAndGradientOfAllTypes) {
  std::pair<DType, DType> types[] = {{DType::F32, DType::F32},
                                     {DType::F16, DType::F16},
                                     {DType::BF16, DType::BF16},
                                     {DType::BF16, DType::F32}};
  int64_t sizes[][3] = {{64, 48, 96}, {40, 16, 8}, {200, 96, 384}};
  for (auto [type, result] : types) {
    for (auto [m, k, n] : sizes) {
      for (int transposed : {0, 1, 2, 3}) {
        Case c{type,
               result,
               {},
               m,
               k,
               n,
               view({}, m, k, transposed & 1),
               view({}, k, n, transposed & 2)};
        check({c, Epilogue::Bias});
        if (result == DType::F32) continue;
        check({c, Epilogue::BiasGelu});
        check({c, Epilogue::GeluBackward});
        check({c, Epilogue::BiasGelu, true});
        check({c, Epilogue::Bias, true});
      }
    }
  }
}

TEST_F(CudaEpilogue, OperandsThatLieInsideOfOthers) {
  Case c{DType::BF16,
         DType::BF16,
         {},
         32,
         64,
         48,
         view({}, 32, 64, false, 16, 8),
         view({}, 64, 48, true, 8, 24)};
  check({c, Epilogue::Bias, false, 24});
  check({c, Epilogue::BiasGelu, true, 40});
  check({c, Epilogue::GeluBackward, false, 16, 8});
}

TEST_F(CudaEpilogue, OddSizesAreTakenOrRefused) {
  for (auto [m, k, n] : {std::array<int64_t, 3>{1, 8, 8}, {7, 5, 3}, {33, 17, 65}, {8, 8, 1}}) {
    Case c{DType::BF16, DType::BF16, {}, m, k, n, view({}, m, k, false), view({}, k, n, true)};
    for (Epilogue e : {Epilogue::Bias, Epilogue::BiasGelu, Epilogue::GeluBackward}) {
      Run r{c, e};
      if (gpu->supports(call_of_run(r), nullptr)) check(r);
    }
  }
}

TEST_F(CudaEpilogue, RefusesWhatTheLibraryHasNot) {
  auto refused = [&](const LibraryCall& call, const std::string& reason) {
    std::string why;
    EXPECT_FALSE(gpu->supports(call, &why));
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  };
  Case c{DType::F64, DType::F64, {}, 16, 16, 16, view({}, 16, 16, false), view({}, 16, 16, false)};
  refused(call_of_run({c, Epilogue::Bias}), "f64");
  c.type = c.result = DType::F32;
  refused(call_of_run({c, Epilogue::BiasGelu}), "not exact");
  refused(call_of_run({c, Epilogue::GeluBackward}), "not exact");
  c.type = c.result = DType::BF16;
  refused(call_of_run({c, Epilogue::GeluBackward, false, 0, 3}), "multiple");
  LibraryCall pair = call_of_run({c, Epilogue::BiasGelu});
  pair.also = {UOp::make(Op::Dot, DType::F32, pair.node->src(), Dims{0, int64_t(Epilogue::Bias)})};
  refused(pair, "two results");
  LibraryCall plain = call_of(c);
  plain.also = {UOp::make(Op::Dot, DType::F32, plain.node->src(), Dims{0})};
  refused(plain, "two results");
}

// A product chosen by timing is the same product, and the choice outlives the device.
TEST_F(CudaEpilogue, TheFastestAlgorithmComputesTheSame) {
  setenv("BEAM", "4", 1);
  reload_options();
  for (int opened = 0; opened < 2; ++opened) {
    gpu = make_cuda_device(0);
    Case c{DType::BF16,
           DType::BF16,
           {},
           96,
           64,
           128,
           view({}, 96, 64, false),
           view({}, 64, 128, true)};
    check({c, Epilogue::Bias});
    check({c, Epilogue::BiasGelu, true});
    testing::check(*gpu, c);
  }
  unsetenv("BEAM");
  reload_options();
}

}  // namespace
}  // namespace tinyshard::testing
