// Attention on a GPU against double precision: by cuDNN, forward and backward, as views of one
// projection, captured and replayed with other inputs.
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/cudnn.h"
#include "tests/core/tensor/attention_cases.h"

namespace tinyshard::test::attention_test {
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

// Their plans are made side by side, those of equal calls once.
TEST_F(CudaAttention, OfManyShapesInOneRun) {
  std::vector<AttentionValues> values;
  std::vector<Tensor> results;
  for (int64_t rows : {64, 96, 128, 160, 96, 64, 224}) {
    AttentionCase c{.rows = rows, .columns = rows};
    values.push_back(attention_values(c, unsigned(values.size())));
    AttentionTensors t = attention_tensors(c, values.back());
    results.push_back(t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = true}));
    results.push_back(results.back().gradient({t.k}, t.d_result)[0]);
  }
  Tensor::realize(results);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_LT(attention_error(results[2 * i], values[i].result), 2e-2) << i;
    EXPECT_LT(attention_error(results[2 * i + 1], values[i].d_k), 2e-2) << i;
  }
}

// The same graph of the GPU serves all inputs: the calls in it are given the others' addresses.
TEST_F(CudaAttention, IsReplayedWithOtherInputs) {
  AttentionCase c{.rows = 192, .columns = 192, .packed = true};
  std::vector<AttentionValues> values;
  std::vector<AttentionTensors> tensors;
  for (unsigned seed : {1u, 2u, 3u}) {
    values.push_back(attention_values(c, seed));
    tensors.push_back(attention_tensors(c, values.back()));
  }
  Jit step = [&](Tensor packed, Tensor d_result) {
    std::vector<Tensor> p = packed_parts(c, packed);
    Tensor y = p[0].scaled_dot_product_attention(p[1], p[2], {}, {.is_causal = true});
    std::vector<Tensor> d = y.gradient({p[0], p[1], p[2]}, d_result.transpose(1, 2));
    return cat({y, d[0], d[1], d[2]}, 0);
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

// The three gradients are written into that of the projection, wherever it lies in a run.
TEST_F(CudaAttention, WritesTheGradientOfAProjection) {
  for (const AttentionCase& c :
       {AttentionCase{.rows = 192, .columns = 192, .packed = true},
        AttentionCase{.dtype = DType::F16, .heads = 1, .rows = 130, .columns = 130, .packed = true},
        AttentionCase{
            .batch = 1, .rows = 64, .columns = 64, .width = 24, .values = 24, .packed = true}}) {
    auto gradient = [&](const Tensor& packed, const Tensor& d_result) {
      std::vector<Tensor> p = packed_parts(c, packed);
      Tensor y = p[0].scaled_dot_product_attention(p[1], p[2], {}, {.is_causal = true});
      return y.gradient({packed}, d_result.transpose(1, 2))[0];
    };
    std::vector<AttentionValues> values;
    std::vector<Tensor> packed, d_result;
    for (unsigned seed : {1u, 2u, 3u}) {
      values.push_back(attention_values(c, seed));
      AttentionTensors t = attention_tensors(c, values.back());
      packed.push_back(t.packed);
      d_result.push_back(t.d_result.transpose(1, 2).contiguous().realize());
    }
    auto kernels = [&](const Tensor& x) {
      std::vector<UOp> roots{x.uop()};
      return summarize(make_plan(roots)).kernels;
    };
    Tensor whole = gradient(packed[0], d_result[0]);
    EXPECT_EQ(kernels(whole), 0) << c.text();
    EXPECT_EQ(kernels(whole.transpose(1, 2).contiguous()), 1) << "rows of columns, " << c.text();
    Jit returned = gradient;
    Jit read = [&](Tensor x, Tensor d) { return gradient(x, d).contiguous() * 2; };
    std::vector<Tensor> kept;
    for (size_t i : {0, 0, 0, 1, 2, 0, 1, 1, 2}) {
      kept.push_back(returned(packed[i], d_result[i]));
      check_gradients(c, packed_parts(c, kept.back()), values[i]);
      Tensor doubled = read(packed[i], d_result[i]);
      check_gradients(c, packed_parts(c, doubled * 0.5), values[i]);
    }
  }
}

}  // namespace
}  // namespace tinyshard::test::attention_test
