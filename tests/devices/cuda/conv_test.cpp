// Convolutions of cuDNN against double precision: the three directions, odd sizes, all types; and
// again from a recording whose operands have changed.
#include "core/base/options.h"
#include "devices/cuda/convolution.h"
#include "tests/devices/cpu/reference.h"
#include "tests/devices/cuda/absent_gpu.h"
#include "tests/devices/cuda/gpu_test.h"

namespace tinyshard::test::conv_test {
namespace {

ConvSpec conv2d(int64_t n, int64_t c, int64_t oc, int64_t h, int64_t w, int64_t k,
                int64_t stride = 1, int64_t pad = 0, int64_t dilation = 1, int64_t groups = 1) {
  ConvSpec s;
  s.n = n, s.c = c, s.oc = oc, s.groups = groups;
  s.in = {h, w, 1}, s.kernel = {k, k, 1}, s.stride = {stride, stride, 1};
  s.dilation = {dilation, dilation, 1}, s.pad_lo = {pad, pad, 0}, s.pad_hi = {pad, pad, 0};
  return s;
}

// The first are those of a small network for 28 x 28 images.
std::vector<ConvSpec> specs() {
  std::vector<ConvSpec> all = {conv2d(8, 1, 32, 28, 28, 5),
                               conv2d(2, 32, 32, 24, 24, 5),
                               conv2d(8, 32, 64, 10, 10, 3),
                               conv2d(8, 64, 64, 8, 8, 3),
                               conv2d(5, 3, 6, 9, 11, 3),
                               conv2d(2, 7, 13, 8, 8, 1),
                               conv2d(2, 17, 19, 9, 9, 3, 2, 1),
                               conv2d(3, 16, 16, 13, 9, 3, 1, 2, 2),
                               conv2d(2, 8, 12, 8, 8, 3, 1, 1, 1, 4),
                               conv2d(2, 16, 16, 8, 8, 3, 1, 1, 1, 16)};
  return all;
}

UOp node_of(const ConvSpec& s, Op op, DType dtype) {
  static int64_t next = 5000;
  auto buffer = [&](Dims shape) {
    shape.insert(shape.begin(), next++);
    return UOp::make(Op::Buffer, dtype, {}, shape);
  };
  Dims x{s.n, s.c, s.in[0], s.in[1]}, w{s.oc, s.c / s.groups, s.kernel[0], s.kernel[1]},
      y{s.n, s.oc, s.out(0), s.out(1)};
  ConvArg arg{};
  for (int i = 0; i < 2; ++i) {
    arg.stride[i] = s.stride[size_t(i)], arg.dilation[i] = s.dilation[size_t(i)];
    arg.pad_low[i] = s.pad_lo[size_t(i)], arg.pad_high[i] = s.pad_hi[size_t(i)];
  }
  arg.groups = s.groups;
  const Dims &first = op == Op::ConvBackwardData ? y : x,
             &second = op == Op::ConvBackwardWeight ? y : w,
             &result = op == Op::Conv               ? y
                       : op == Op::ConvBackwardData ? x
                                                    : w;
  std::ranges::copy(result, arg.result);
  return UOp::make(op, dtype, {buffer(first), buffer(second)}, to_ints(arg));
}

StridedView row_major(DimSpan shape) {
  StridedView view{0, Dims(shape.begin(), shape.end()), Dims(shape.size())};
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) view.strides[i] = stride;
  return view;
}

LibraryCall call_of(const UOp& node) {
  return {node, {row_major(node.src(0).shape()), row_major(node.src(1).shape())}, {}};
}

double worst_error(const ConvSpec& s, Op op, const Buffer& a, const Buffer& b, const Buffer& got) {
  std::vector<double> expected(size_t(got.size())), scale(expected.size(), 1e-30);
  for_conv(s, [&](int64_t x, int64_t w, int64_t y) {
    double product =
        a.get(op == Op::ConvBackwardData ? y : x) * b.get(op == Op::ConvBackwardWeight ? y : w);
    auto at = size_t(op == Op::Conv ? y : op == Op::ConvBackwardData ? x : w);
    expected[at] += product;
    scale[at] += std::abs(product);
  });
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    double error = std::abs(got.get(int64_t(i)) - expected[i]) / scale[i];
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

double tolerance(DType dtype) {
  if (dtype == DType::F32) return options().tf32 ? 2e-3 : 2e-5;
  return dtype == DType::F16 ? 2e-3 : 1e-2;
}

constexpr Op kOps3[] = {Op::Conv, Op::ConvBackwardData, Op::ConvBackwardWeight};

class CudaConv : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!cuda::Cudnn::get().found()) GTEST_SKIP() << cuda::Cudnn::get().why_not();
  }
};

TEST_F(CudaConv, MatchesDoublePrecision) {
  for (const ConvSpec& s : specs()) {
    for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      for (Op op : kOps3) {
        UOp node = node_of(s, op, dtype);
        SCOPED_TRACE(s.to_string() + " " + describe(*node));
        LibraryCall call = call_of(node);
        std::string why;
        if (!gpu->supports(call, &why)) {
          std::printf("not by cuDNN: %s: %s\n", s.to_string().c_str(), why.c_str());
          EXPECT_NE(s.groups, 1) << why;
          continue;
        }
        Buffer a = Buffer::random(dtype, node.src(0)->numel(), 1),
               b = Buffer::random(dtype, node.src(1)->numel(), 2), c(dtype, node->numel());
        OnGpu<char> on_a(*gpu, a.bytes()), on_b(*gpu, b.bytes()), on_c(*gpu, c.bytes());
        void* buffers[] = {on_a.get(), on_b.get(), on_c.get()};
        gpu->library(call)->launch(buffers, nullptr);
        std::vector<char> bytes = on_c.values();
        std::memcpy(c.data(), bytes.data(), bytes.size());
        EXPECT_LT(worst_error(s, op, a, b, c), tolerance(dtype));
      }
    }
  }
}

TEST_F(CudaConv, ARecordedOneTakesOtherOperands) {
  ConvSpec s = conv2d(4, 32, 32, 24, 24, 5);
  for (Op op : kOps3) {
    UOp node = node_of(s, op, DType::F32);
    auto program = gpu->library(call_of(node));
    std::vector<Buffer> a;
    for (int seed : {1, 3}) a.push_back(Buffer::random(DType::F32, node.src(0)->numel(), seed));
    Buffer b = Buffer::random(DType::F32, node.src(1)->numel(), 2), c(DType::F32, node->numel());
    OnGpu<char> on_a(*gpu, a[0].bytes()), on_other(*gpu, a[1].bytes()), on_b(*gpu, b.bytes()),
        on_c(*gpu, c.bytes());
    void* buffers[] = {on_a.get(), on_b.get(), on_c.get()};
    program->launch(buffers, nullptr);
    gpu->begin_recording();
    program->launch(buffers, nullptr);
    auto recording = gpu->end_recording();
    for (int i : {0, 1, 0}) {
      buffers[0] = i == 0 ? on_a.get() : on_other.get();
      void* const* changed[] = {buffers};
      EXPECT_TRUE(recording->update(changed)) << "recorded as a whole again";
      recording->launch();
      std::vector<char> bytes = on_c.values();
      std::memcpy(c.data(), bytes.data(), bytes.size());
      EXPECT_LT(worst_error(s, op, a[size_t(i)], b, c), tolerance(DType::F32)) << "operand " << i;
    }
  }
}

class ConvPlan : public AbsentGpu {};

TEST_F(ConvPlan, HasAnEngineForTheUsualShapes) {
  for (const ConvSpec& s : specs()) {
    for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      for (Op op : kOps3) {
        UOp node = node_of(s, op, dtype);
        EXPECT_TRUE(cuda::convolution_has_engine(node, {nullptr, kH200}))
            << s.to_string() << " " << describe(*node);
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard::test::conv_test
