// Attention as one op: values and gradients on the CPU, where it is spelled out, divided among
// devices, differentiated twice; and the plan of devices that take it whole.
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "tests/core/tensor/attention_cases.h"
#include "tests/devices.h"

namespace tinyshard::test::attention_test {
namespace {

class AttentionTest : public ::testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

TEST_F(AttentionTest, IsAsInDoublePrecision) {
  for (DType dtype : {DType::BF16, DType::F16}) {
    for (bool causal : {false, true}) {
      check_attention({.dtype = dtype, .causal = causal});
      check_attention({.dtype = dtype, .causal = causal, .packed = true});
      check_attention({.dtype = dtype, .rows = 40, .columns = 72, .causal = causal});
      check_attention({.dtype = dtype, .rows = 72, .columns = 40, .causal = causal});
      check_attention({.dtype = dtype, .width = 128, .values = 128, .causal = causal});
      check_attention(
          {.dtype = dtype, .batch = 1, .heads = 1, .width = 24, .values = 56, .causal = causal});
    }
  }
}

TEST_F(AttentionTest, IsTheSameDividedAmongDevices) {
  Runtime::configure({.devices = {"CPU:0", "CPU:1"}});
  Mesh mesh = Mesh::world({{"data", -1}});
  AttentionCase c{.batch = 4, .heads = 6};
  AttentionValues x = attention_values(c, 5);
  for (int dim : {0, 1, 2, 3}) {  // batch, heads, rows, width
    AttentionTensors t = attention_tensors(c, x);
    for (Tensor* part : {&t.q, &t.k, &t.v, &t.d_result})
      *part = part->shard(mesh, {{"data", Shard(dim)}}).realize();
    Tensor y = t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = true});
    std::vector<Tensor> d = y.gradient({t.q, t.k, t.v}, t.d_result);
    std::vector<UOp> roots{y.uop(), d[0].uop(), d[1].uop(), d[2].uop()};
    if (dim < 2) {
      EXPECT_EQ(summarize(make_plan(roots)).collectives, 0) << "divided by " << dim;
    }
    EXPECT_LT(attention_error(y, x.result), 2e-2) << "divided by " << dim;
    EXPECT_LT(attention_error(d[0], x.d_q), 2e-2) << "divided by " << dim;
    EXPECT_LT(attention_error(d[1], x.d_k), 2e-2) << "divided by " << dim;
    EXPECT_LT(attention_error(d[2], x.d_v), 2e-2) << "divided by " << dim;
  }
}

// The gradient of a gradient, by differences of the first one in f32, which is composed.
// The gradient by one tensor that is several operands is the sum of theirs.
TEST_F(AttentionTest, OperandsMayBeOneTensor) {
  const Tensor weight = (Tensor::arange(48) * 0.7).sin().reshape({4, 3, 4});
  for (DType type : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
    auto values = [&](Dims shape) {
      const Tensor count = Tensor::arange(shape[0] * shape[1] * shape[2]);
      return (count * 0.37).cos().reshape(shape).cast(type).realize();
    };
    const AttentionOptions shared{.enable_gqa = true};
    const Tensor q = values({4, 3, 4}), k = values({2, 3, 4});
    auto sum = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
      return (a.scaled_dot_product_attention(b, c, {}, shared) * weight).sum();
    };
    auto same = [&](const Tensor& one, const std::vector<Tensor>& parts) {
      std::vector<float> got = one.to_vector<float>();
      std::vector<float> want(got.size());
      for (const Tensor& part : parts) {
        const std::vector<float> terms = part.to_vector<float>();
        for (size_t i = 0; i < want.size(); ++i) want[i] += terms[i];
      }
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], itemsize(type) == 2 ? 2e-2 : 1e-5)
            << name(type) << " at " << i;
    };
    const Tensor a = q.clone(), b = q.clone(), c = q.clone(), d = k.clone(), e = k.clone();
    same(sum(q, q, q).gradient({q})[0], sum(a, b, c).gradient({a, b, c}));
    same(sum(q, k, k).gradient({k})[0], sum(q, d, e).gradient({d, e}));
  }
}

TEST_F(AttentionTest, IsDifferentiatedTwice) {
  AttentionCase c{.dtype = DType::F16,
                  .batch = 1,
                  .heads = 1,
                  .rows = 6,
                  .columns = 6,
                  .width = 8,
                  .values = 8};
  AttentionValues x = attention_values(c, 3);
  auto second = [&](DType dtype) {
    AttentionTensors t = attention_tensors(c, x);
    for (Tensor* part : {&t.q, &t.k, &t.v, &t.d_result})
      *part = part->cast(DType::F32).cast(dtype).contiguous().realize();
    Tensor y = t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = true});
    std::vector<Tensor> d = y.gradient({t.q, t.k}, t.d_result);
    Tensor sum = d[0].cast(DType::F32).square().sum() + d[1].cast(DType::F32).square().sum();
    std::vector<Tensor> dd = sum.gradient({t.q, t.k, t.v, t.d_result});
    std::vector<double> all;
    for (const Tensor& g : dd) {
      for (double value : g.cast(DType::F32).to_vector<double>()) all.push_back(value);
    }
    return all;
  };
  Numbers narrow = second(DType::F16), wide = second(DType::F32);
  ASSERT_EQ(narrow.size(), wide.size());
  double worst = 0, size = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    worst = std::max(worst, std::abs(narrow[i] - wide[i]));
    size = std::max(size, std::abs(wide[i]));
  }
  EXPECT_GT(size, 0.01);
  EXPECT_LT(worst, 2e-2 * size);
}

// Operands that are one tensor, and detached in what the loss makes of the result. Computed as one op
// and, in wide types or with heads repeated, as products and a softmax.
TEST_F(AttentionTest, OfOneTensorIsDifferentiatedUpToThreeTimes) {
  auto check = [](auto attention, DType type, DType reference, bool shared, double tolerance) {
    const Tensor q = (Tensor::arange(48) * 0.7).sin().cast(type).reshape({4, 3, 4}).realize();
    const Tensor k = shared ? (q.cast(DType::F32)[Slice(0, 2)] * 0.8).cast(type).realize() : q;
    auto derivative = [&](int order, DType computed, bool one_op) {
      const Tensor a = q.cast(computed), b = shared ? k.cast(computed) : a;
      Tensor loss = (attention(a, b, one_op) * a.detach()).cast(DType::F64).square().sum();
      for (int i = 1; i < order; ++i)
        loss = loss.gradient({a})[0].cast(DType::F64).square().sum() * 0.1;
      return loss.gradient({a})[0].to_vector<double>();
    };
    for (int order : {1, 2, 3}) {
      const std::vector<double> got = derivative(order, type, true);
      const std::vector<double> want = derivative(order, reference, false);
      double size = 0;
      for (double x : want) size = std::max(size, std::abs(x));
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], tolerance * size) << name(type) << " " << order << " at " << i;
    }
  };
  auto whole = [](const Tensor& q, const Tensor& k, bool) {
    return q.scaled_dot_product_attention(k, k);
  };
  check(whole, DType::BF16, DType::F32, false, 5e-2);
  check(whole, DType::F16, DType::F32, false, 1e-2);
  auto by_groups = [](const Tensor& q, const Tensor& k, bool one_op) {
    const Tensor of_each = one_op ? k : k.repeat_interleave(2, 0);
    return q.scaled_dot_product_attention(of_each, of_each, {}, {.enable_gqa = one_op});
  };
  check(by_groups, DType::F32, DType::F32, true, 1e-4);
  check(by_groups, DType::F64, DType::F64, true, 1e-12);
}

// The forward and the backward pass share the scores and the weights.
TEST_F(AttentionTest, NeedsNoMoreProductsThanItsPartsDo) {
  AttentionCase c;
  AttentionTensors t = attention_tensors(c, attention_values(c, 1));
  Tensor y = t.q.scaled_dot_product_attention(t.k, t.v, {}, {.is_causal = true});
  std::vector<Tensor> d = y.gradient({t.q, t.k, t.v}, t.d_result);
  std::vector<UOp> roots{y.uop(), d[0].uop(), d[1].uop(), d[2].uop()};
  bool whole = device_kind() == "CUDA";
  EXPECT_EQ(summarize(make_plan(roots)).library_calls, whole ? 2 : 6);
}

// Not for the one that the operands come from.
TEST_F(AttentionTest, IsPlannedForTheDeviceThatComputesIt) {
  Runtime::configure({.devices = {"NULL"}});
  auto calls = [](const std::string& from, const std::string& to) {
    Sharding place = replicated(Mesh::of({from}));
    Tensor x(make_state(empty_buffer(Dims{2, 8, 64}, DType::BF16, place)));
    Tensor there = x.unsqueeze(0).to(to);
    std::vector<UOp> roots{there.scaled_dot_product_attention(there, there).uop()};
    return summarize(make_plan(roots)).library_calls;
  };
  EXPECT_EQ(calls("NULL", "NULL"), 1);  // takes all that it is asked for
  EXPECT_EQ(calls("CPU:0", "NULL"), 1);
  EXPECT_EQ(calls("NULL", "CPU:0"), 2);
}

TEST_F(AttentionTest, WholeOnADeviceItHoldsNoScores) {
  Runtime::configure({.devices = {"NULL"}});
  int64_t batch = 2, rows = 320, heads = 4, width = 64;
  Tensor x = Tensor::empty({batch, rows, 3 * heads * width}, DType::BF16).realize();
  std::vector<Tensor> part = x.chunk(3, -1);
  for (Tensor& p : part) p = p.unflatten(-1, {heads, -1}).transpose(1, 2);
  Tensor y = part[0]
                 .scaled_dot_product_attention(part[1], part[2], {}, {.is_causal = true})
                 .transpose(1, 2)
                 .reshape({batch * rows, heads * width})
                 .matmul(Tensor::empty({heads * width, 32}, DType::BF16).realize());
  Tensor d = y.gradient({x}, Tensor::empty({batch * rows, 32}, DType::BF16).realize())[0];
  std::vector<UOp> roots{y.uop(), d.uop()};
  Schedule schedule = make_plan(roots);
  int calls = 0;
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Library || item.call.node.op() == Op::Dot) continue;
    ++calls;
    Op op = item.call.node.op();
    EXPECT_TRUE(op == Op::Attention || op == Op::AttentionBackward) << item.describe();
    EXPECT_EQ(item.call.also.size(), op == Op::Attention ? 1u : 2u) << "results together";
    EXPECT_FALSE(std::ranges::equal(item.call.operands[0].strides,
                                    Dims{heads * rows * width, rows * width, width, 1}))
        << "operands are not copied";
  }
  EXPECT_EQ(calls, 2);
  for (const VirtualBuffer& b : schedule.buffers)
    EXPECT_LT(b.numel(), batch * heads * rows * rows) << to_string(b.shape);
  // The result lies as the product that reads it wants it, the three gradients in that of `x`.
  EXPECT_EQ(summarize(schedule).kernels, 0);
}

}  // namespace
}  // namespace tinyshard::test::attention_test
