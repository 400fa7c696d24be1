// Attention on a GPU against double precision: by cuDNN, forward and backward, as views of one
// projection, captured and replayed with other inputs; and how fast it is.
#include <chrono>
#include <cstdio>

#include "core/exec/executable.h"
#include "core/exec/pipeline.h"
#include "core/exec/runtime.h"
#include "core/exec/storage.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/cudnn.h"
#include "tests/core/tensor/attention_cases.h"

namespace tinyshard::testing {
namespace {

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() == 0) GTEST_SKIP() << describe_cuda();
    if (!cuda::Cudnn::get().found()) GTEST_SKIP() << cuda::Cudnn::get().why_not();
    Runtime::shutdown();
    Runtime::configure({.devices = {"CUDA:0"}});
  }
  void TearDown() override { Runtime::shutdown(); }
};

int attention_calls(const std::vector<Tensor>& tensors) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  int calls = 0;
  for (const Item& item : make_plan(roots).items) {
    if (item.kind != Item::Kind::Library) continue;
    Op op = item.call.node.op();
    calls += op == Op::Attention || op == Op::AttentionBackward;
  }
  return calls;
}

TEST_F(CudaAttention, IsAsInDoublePrecision) {
  for (DType dtype : {DType::BF16, DType::F16}) {
    for (bool causal : {false, true}) {
      check_attention({.dtype = dtype, .causal = causal});
      check_attention({.dtype = dtype, .rows = 300, .columns = 300, .causal = causal});
      check_attention(
          {.dtype = dtype, .rows = 256, .columns = 256, .causal = causal, .packed = true});
      check_attention({.dtype = dtype, .rows = 40, .columns = 72, .causal = causal});
      check_attention({.dtype = dtype, .rows = 172, .columns = 140, .causal = causal});
      check_attention({.dtype = dtype, .width = 128, .values = 128, .causal = causal});
      check_attention(
          {.dtype = dtype, .batch = 1, .heads = 1, .width = 24, .values = 56, .causal = causal});
      check_attention({.dtype = dtype, .width = 20, .causal = causal});  // spelled out
    }
  }
}

TEST_F(CudaAttention, IsTwoCallsOfTheLibrary) {
  for (bool packed : {false, true}) {
    AttentionCase c{.packed = packed};
    AttentionTensors t = attention_tensors(c, attention_values(c, 1));
    Tensor y = t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = true});
    std::vector<Tensor> d = y.gradient({t.q, t.k, t.v}, t.d_result);
    EXPECT_EQ(attention_calls({y, d[0], d[1], d[2]}), 2);
  }
  AttentionCase odd{.width = 20};
  AttentionTensors t = attention_tensors(odd, attention_values(odd, 1));
  EXPECT_EQ(attention_calls({t.q.scaled_dot_product_attention(t.k, t.v)}), 0);
}

TEST_F(CudaAttention, SomeOfItsGradients) {
  AttentionCase c{.rows = 128, .columns = 128};
  AttentionValues x = attention_values(c, 23);
  AttentionTensors t = attention_tensors(c, x);
  auto y = [&] { return t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = true}); };
  EXPECT_LT(attention_error(y(), x.result), 2e-2) << "without statistics";
  EXPECT_LT(attention_error(y().gradient({t.k}, t.d_result)[0], x.d_k), 2e-2);
  EXPECT_LT(attention_error(y().gradient({t.v}, t.d_result)[0], x.d_v), 2e-2);
}

// One graph of the GPU serves all inputs: the calls in it are given the others' addresses.
TEST_F(CudaAttention, IsReplayedWithOtherInputs) {
  AttentionCase c{.rows = 192, .columns = 192, .packed = true};
  std::vector<AttentionValues> values;
  std::vector<AttentionTensors> tensors;
  for (unsigned seed : {1u, 2u, 3u}) {
    values.push_back(attention_values(c, seed));
    tensors.push_back(attention_tensors(c, values.back()));
  }
  Jit step = [&](Tensor packed, Tensor d_result) {
    std::vector<Tensor> p = packed.chunk(3, -1);
    for (Tensor& part : p) part = part.unflatten(-1, {c.heads, -1}).transpose(1, 2);
    Tensor y = p[0].scaled_dot_product_attention(p[1], p[2], {}, {.is_causal = true});
    std::vector<Tensor> d = y.gradient({p[0], p[1], p[2]}, d_result.transpose(1, 2));
    return Tensor::cat({y, d[0], d[1], d[2]}, 0);
  };
  for (size_t i : {0, 0, 0, 1, 2, 0, 1, 1, 2}) {
    const AttentionValues& x = values[i];
    Tensor d_result = tensors[i].d_result.transpose(1, 2).contiguous().realize();
    Numbers expected;
    for (const Numbers* part : {&x.result, &x.d_q, &x.d_k, &x.d_v})
      expected.insert(expected.end(), part->begin(), part->end());
    ASSERT_LT(attention_error(step(tensors[i].packed, d_result), expected), 2e-2) << "input " << i;
  }
}

TEST_F(CudaAttention, ItsSpeed) {
  int64_t batch = 64, heads = 12, rows = 1024, width = 64;
  Tensor packed = Tensor::randn({batch, rows, 3 * heads * width}).cast(DType::BF16).realize();
  Tensor d_result = Tensor::randn({batch, rows, heads * width}).cast(DType::BF16).realize();
  std::vector<Tensor> p = packed.chunk(3, -1);
  for (Tensor& part : p) part = part.unflatten(-1, {heads, -1}).transpose(1, 2);
  Tensor d = d_result.unflatten(-1, {heads, -1}).transpose(1, 2);
  auto y = [&] { return p[0].scaled_dot_product_attention(p[1], p[2], {}, {.is_causal = true}); };
  Device& gpu = Runtime::get().device(parse_device("CUDA:0"));
  double flop = 2.0 * double(batch * heads * rows * rows * width);  // half of the square
  // The calls themselves, without what surrounds them.
  Tensor result = y();
  std::vector<Tensor> gradients = result.gradient({p[0], p[1], p[2]}, d);
  std::vector<UOp> roots{result.uop(), gradients[0].uop(), gradients[1].uop(), gradients[2].uop()};
  auto memory_of = [](const Tensor& t) { return Storage::of(*t.uop())->memory()[0]; };
  void* qkv = memory_of(packed);
  auto bytes = size_t(batch * heads * rows * width) * 2;
  void* made[] = {gpu.allocate(bytes), gpu.allocate(bytes), gpu.allocate(bytes)};
  void *kept = gpu.allocate(bytes), *statistics = gpu.allocate(bytes);
  using Clock = std::chrono::steady_clock;
  for (const Item& item : make_plan(roots).items) {
    if (item.kind != Item::Kind::Library) continue;
    bool backward = item.call.node.op() == Op::AttentionBackward;
    auto start = Clock::now();
    auto since = [&] {
      return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    };
    Program& program = Runtime::get().program(gpu, item.call);
    double making = since();
    std::vector<void*> buffers{qkv, qkv, qkv};
    if (backward)
      buffers.insert(buffers.end(),
                     {kept, statistics, memory_of(d_result), made[0], made[1], made[2]});
    else
      buffers.insert(buffers.end(), {kept, statistics});
    constexpr int kRuns = 20;
    double ms = 0;
    for (int round = 0; round < 2; ++round) {
      gpu.synchronize();
      start = Clock::now();
      for (int i = 0; i < kRuns; ++i) program.launch(buffers.data(), nullptr);
      gpu.synchronize();
      ms = since() / kRuns;
    }
    double rate = (backward ? 2.5 : 1) * flop / ms / 1e9;
    std::printf("%s: %.3f ms, %.0f TFLOP/s, made in %.1f ms\n", program.describe().c_str(), ms,
                rate, making);
    EXPECT_GT(rate, 100);
  }
  for (void* memory : {made[0], made[1], made[2], kept, statistics}) gpu.free(memory, bytes);
}

}  // namespace
}  // namespace tinyshard::testing
