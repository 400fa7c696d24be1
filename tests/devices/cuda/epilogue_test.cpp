// Epilogues of cuBLASLt on the sums of a product, against double precision, in the type that is
// stored: bias, GELU with and without the value before it, GELU's gradient; and algorithms chosen
// by time.
#include <array>
#include <cstdlib>

#include "core/base/options.h"
#include "devices/gpu/product_regions.h"
#include "tests/devices/cuda/matmul_case.h"

namespace tinyshard::test::epilogue_test {
namespace {

using gpu::Epilogue;

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

// An element of the product itself, without batches.
double sum_at(const Case& c, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
              int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t x = 0; x < c.k; ++x)
    sum += decode(c.type, a, size_t(c.a.offset + i * c.a.strides[0] + x * c.a.strides[1])) *
           decode(c.type, b, size_t(c.b.offset + x * c.b.strides[0] + j * c.b.strides[1]));
  return sum;
}

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
    auto node = [&](Epilogue e) {
      return gpu::product_with(e, r.c.result, plain.node.src(0), plain.node.src(1), 0,
                               std::span(&source, 1));
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
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = sum_at(c, a, b, i, j);
        bool whole = r.epilogue == Epilogue::GeluBackward;
        double t = decode(c.result, third,
                          size_t(r.offset + (whole ? i * call.operands[2].strides[0] : 0) + j));
        auto expected = [&](Epilogue e) {
          return e == Epilogue::Bias       ? sum + t
                 : e == Epilogue::BiasRelu ? std::max(sum + t, 0.0)
                 : e == Epilogue::BiasGelu ? gelu(sum + t)
                                           : sum * gelu_slope(t);
        };
        auto compare = [&](Epilogue e, const std::vector<std::byte>& values) {
          double want = expected(e), value = decode(c.result, values, size_t(i * c.n + j));
          double error = std::abs(value - want);
          ASSERT_LE(error, epilogue_tolerance(c.result, std::abs(sum) + std::abs(t)))
              << program->describe() << " at " << i << ", " << j << ": " << value << ", not "
              << want;
        };
        compare(r.epilogue, got);
        if (r.both) compare(*gpu::epilogue_of(call.also[0]), got_other);
        if (HasFatalFailure()) return;
      }
    }
  }

  // s[0] a b + s[1] c, stored over c or beside it.
  void check_update(const Case& c, bool scaled, bool in_place) {
    LibraryCall call = call_of(c);
    auto source = [&](DType dtype, Dims shape) {
      call.operands.push_back(row_major(shape));
      shape.insert(shape.begin(), next_++);
      return UOp::make(Op::Buffer, dtype, {}, shape);
    };
    std::vector<UOp> operands{source(c.result, {c.m, c.n})};
    if (scaled) operands.push_back(source(DType::F32, {2}));
    call.node = gpu::product_with(Epilogue::Update, c.result, call.node.src(0), call.node.src(1), 0,
                                  operands);
    std::string why;
    bool supported = gpu->supports(call, &why), aligned = c.k % 8 == 0 && c.n % 8 == 0;
    if (!supported && !aligned) return;
    ASSERT_TRUE(supported) << why;
    auto a = random_operand(c, c.a, 1), b = random_operand(c, c.b, 2);
    Case like_result = c;
    like_result.type = c.result;
    auto old = random_operand(like_result, call.operands[2], 3);
    std::vector<std::byte> poison(old.size(), std::byte{0xff});
    OnGpu<std::byte> on_a(*gpu, a), on_b(*gpu, b), on_old(*gpu, old), beside(*gpu, poison);
    const std::vector<float> s{-0.25F, 1.5F};
    OnGpu<float> on_s(*gpu, s);
    OnGpu<std::byte>& out = in_place ? on_old : beside;
    std::vector<void*> buffers{on_a.get(), on_b.get(), on_old.get()};
    if (scaled) buffers.push_back(on_s.get());
    buffers.push_back(out.get());
    auto program = gpu->library(call);
    program->launch(buffers.data(), nullptr);
    std::vector<std::byte> got = out.values();
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = sum_at(c, a, b, i, j), was = decode(c.result, old, size_t(i * c.n + j));
        double want = scaled ? s[0] * sum + s[1] * was : sum + was;
        double value = decode(c.result, got, size_t(i * c.n + j));
        ASSERT_LE(std::abs(value - want),
                  epilogue_tolerance(c.result, std::abs(sum) + 2 * std::abs(was)))
            << program->describe() << " at " << i << ", " << j << ": " << value << ", not " << want;
      }
    }
  }

  int64_t next_ = 5000;
};

TEST_F(CudaEpilogue, UpdatesWhatIsThere) {
  for (DType type : {DType::F32, DType::BF16}) {
    for (auto [m, k, n] : {std::array<int64_t, 3>{64, 48, 96}, {10, 33, 7}, {1, 8, 5}}) {
      Case c{type, DType::F32, {}, m, k, n, view({}, m, k, true), view({}, k, n, false)};
      for (bool scaled : {false, true}) {
        for (bool in_place : {false, true}) check_update(c, scaled, in_place);
      }
    }
  }
}

TEST_F(CudaEpilogue, BiasReluGeluAndGradientOfAllTypes) {
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
        check({c, Epilogue::BiasRelu});
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
    for (Epilogue e :
         {Epilogue::Bias, Epilogue::BiasRelu, Epilogue::BiasGelu, Epilogue::GeluBackward}) {
      Run r{c, e};
      if (gpu->supports(call_of_run(r), nullptr)) check(r);
    }
  }
}

TEST_F(CudaEpilogue, RefusesWhatTheLibraryHasNot) {
  auto with_region = [](const UOp& x, Epilogue e) {
    return gpu::product_with(e, x.dtype(), x.src(0), x.src(1), 0, x->src().subspan(2));
  };
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
  pair.also = {with_region(pair.node, Epilogue::BiasRelu)};
  refused(pair, "two results");
  LibraryCall plain = call_of(c);
  plain.also = {UOp::make(Op::Dot, DType::F32, plain.node->src(), Dims{0})};
  refused(plain, "two results");
  LibraryCall gaps = call_of_run({c, Epilogue::GeluBackward, false, 0, 8});
  gaps.node = with_region(gaps.node, Epilogue::Update);
  refused(gaps, "gaps between its rows");
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
    c.result = DType::F32;
    check_update(c, true, true);  // timed without doing it again and again
  }
  unsetenv("BEAM");
  reload_options();
}

}  // namespace
}  // namespace tinyshard::test::epilogue_test
