// A training step needs little memory: nothing is kept that need not be, and results lie
// where their operands were, without changing a value.
#include "core/schedule/memory.h"

#include <cmath>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/make_executable.h"
#include "core/exec/schedule_of.h"

namespace tinyshard::memory_test {
namespace {

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

Schedule plan(const std::vector<Tensor>& tensors) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  return make_plan(roots);
}
void use_null() { Runtime::configure({.devices = {"NULL"}}); }

// Buffers of a schedule that take memory of their own and hold at least this many elements.
std::vector<DType> large_buffers(const Schedule& s, int64_t numel) {
  std::vector<DType> types;
  for (const Life& life : arena_lives(s)) {
    const VirtualBuffer& b = s.buffers[size_t(life.buffer)];
    if (b.numel() >= numel) types.push_back(b.dtype);
  }
  return types;
}

TEST_F(MemoryTest, CrossEntropyKeepsTheLogitsOnceAndNarrow) {
  use_null();
  constexpr int64_t kTokens = 2048, kVocabulary = 1024, kWidth = 16;
  Tensor x = Tensor::empty({kTokens, kWidth}, DType::BF16),
         w = Tensor::empty({kWidth, kVocabulary}, DType::BF16),
         labels = Tensor::empty(kTokens, DType::I32);
  Tensor scores = x.matmul(w).cast(DType::F32);
  scores = (Tensor::arange(kVocabulary) < 1000).where(scores, -INFINITY);
  Tensor loss = scores.sparse_categorical_crossentropy(labels);
  std::vector<Tensor> all = loss.gradient({x, w});
  all.push_back(loss);
  Schedule s = plan(all);
  EXPECT_EQ(large_buffers(s, kTokens * kVocabulary), (std::vector<DType>{DType::BF16}));
  // The mask is computed where it is used.
  for (const VirtualBuffer& b : s.buffers) EXPECT_NE(b.dtype, DType::Bool);
}

TEST_F(MemoryTest, ProductsOfNarrowFloatsAreNarrow) {
  use_null();
  Tensor x = Tensor::empty({64, 64}, DType::BF16);
  Schedule s = plan({(x.matmul(x) + x).relu()});
  EXPECT_TRUE(large_buffers(s, 64 * 64).empty() ||
              large_buffers(s, 64 * 64) == std::vector<DType>{DType::BF16});
}

// The same where no library takes them: a sum of 4096 ones stays at 2048 when it is kept in f16.
TEST_F(MemoryTest, NarrowProductsAccumulateInF32) {
  Tensor ones = Tensor::ones({3, 4096}, DType::F16).realize();
  auto check = [&] {
    for (double v : ones.matmul(ones.transpose(0, 1)).to_vector<double>()) EXPECT_EQ(v, 4096);
  };
  check();
  setenv("TS_LIBRARIES", "0", 1);
  reload_options();
  check();
  unsetenv("TS_LIBRARIES");
  reload_options();
}

// The gradient of a layer's weight is made when that of its result is there, not when all are.
TEST_F(MemoryTest, GradientsOfWeightsAreMadeEarly) {
  use_null();
  constexpr int64_t kTokens = 4096, kWidth = 32, kLayers = 8;
  std::vector<nn::Linear> net = nn::layers<nn::Linear>(kLayers, kWidth, kWidth);
  nn::optim::SGD optim(nn::parameters(net), {.lr = 0.1});
  Jit step = [&](Tensor x) {
    TrainingMode on;
    optim.zero_grad();
    for (const nn::Linear& layer : net) x = layer(x).tanh();
    Tensor loss = x.square().mean().backward();
    nn::clip_grad_norm(optim.params(), 1);  // needs all gradients before the first update
    optim.step();
    return loss;
  };
  step(Tensor::empty({kTokens, kWidth}));
  int64_t activations = 0, made = 0;  // products so far
  for (const Item& item : schedule_of(step.captured_step()).items) {
    if (item.kind != Item::Kind::Library || item.call.node.op() != Op::Dot) continue;
    if (item.call.node.shape()[0] == kTokens) {
      ++activations;
      // Two for each layer but the first, which has no gradient to pass on.
      EXPECT_GE(made, activations - kLayers - 1) << activations;
    } else {
      ++made;
    }
  }
  EXPECT_EQ(made, kLayers);
  EXPECT_EQ(activations, 2 * kLayers - 1);
}

TEST_F(MemoryTest, ASoftmaxTakesThePlaceOfItsOperand) {
  auto result = [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return a.matmul(b).softmax().matmul(c);
  };
  for (auto [rows, columns] : {std::pair(70, 4099), {3, 65536}, {5000, 256}, {1, 20000}}) {
    Tensor a = Tensor::randn({rows, 30}).realize(), b = Tensor::randn({30, columns}).realize(),
           c = Tensor::randn({columns, 5}).realize();
    EXPECT_EQ(large_buffers(plan({result(a, b, c)}), rows * columns).size(), 1u);
    Tensor product = a.matmul(b).realize(), weights = product.softmax().realize();
    std::vector<float> in_place = result(a, b, c).to_vector<float>(),
                       apart = weights.matmul(c).to_vector<float>();
    for (size_t i = 0; i < apart.size(); ++i)
      ASSERT_NEAR(in_place[i], apart[i], 1e-5) << rows << " rows, " << i;
  }
}

TEST_F(MemoryTest, WhatIsReadElsewhereIsNotReplaced) {
  Tensor a = Tensor::randn({64, 64}).realize(), b = Tensor::randn({64, 64}).realize();
  Tensor p = a.matmul(b).realize();
  auto check = [&](auto f) {
    EXPECT_EQ(f(a.matmul(b)).matmul(b).template to_vector<float>(),
              f(p).realize().matmul(b).template to_vector<float>());
  };
  check([](const Tensor& x) { return x + x.transpose(0, 1); });
  check([](const Tensor& x) { return x.softmax(0) + x.flip({0}); });
  check([](const Tensor& x) { return x.roll({1}, 0) * 2; });
  check([](const Tensor& x) { return x / x.sum(); });
  check([](const Tensor& x) { return x.softmax(0) + x.softmax(1); });
  check([](const Tensor& x) { return x - x.max(1, true) + x.sum(0, true); });
}

TEST_F(MemoryTest, TheGradientOfAnEmbeddingRepeatsNoIndex) {
  use_null();
  constexpr int64_t kWidth = 64;
  Tensor table = Tensor::empty({1000, kWidth}), text = Tensor::empty({8, 129}, DType::I32);
  Tensor index = text[{kEllipsis, Slice({}, -1)}];
  Tensor gradient = Tensor::empty({8, 128, kWidth});
  for (DType type :
       large_buffers(plan(table.embedding(index).gradient({table}, gradient)), 8 * 128 * kWidth)) {
    EXPECT_TRUE(is_float(type));
  }
}

// A chain of kernels with a buffer of 64 bytes between any two. Which kernels write each offset?
std::vector<std::vector<int>> writers(int length, int64_t spare) {
  Schedule s;
  for (int i = 0; i < length; ++i) {
    VirtualBuffer b;
    b.dtype = DType::F32;
    b.shape = {16};
    s.buffers.push_back(b);
    Item item;
    if (i > 0) item.reads = {i - 1};
    item.writes = {i};
    s.items.push_back(item);
  }
  plan_memory(s, spare);
  std::vector<std::vector<int>> at(size_t(s.arena_bytes / 64));
  for (int i = 0; i < length; ++i) at[size_t(s.buffers[size_t(i)].arena_offset / 64)].push_back(i);
  return at;
}

TEST_F(MemoryTest, IsUsedAgainAtOnceLaterOrNeverAsThereIsRoom) {
  EXPECT_EQ(writers(40, 0).size(), 2) << "one read, one written";
  std::vector<std::vector<int>> later = writers(40, 37 * 64), never = writers(40, 38 * 64);
  EXPECT_EQ(never.size(), 40);
  EXPECT_EQ(later.size(), kBeside + 2);
  for (const auto& list : later) {
    for (size_t i = 1; i < list.size(); ++i) EXPECT_GT(list[i], list[i - 1] + 1 + kBeside);
  }
  EXPECT_EQ(writers(40, (kBeside - 1) * 64).size(), 2) << "too little for either";
}

TEST_F(MemoryTest, PicksOfComputedValuesAreTheirValues) {
  Tensor x = Tensor::randn({8, 100}).realize();
  Tensor index = Tensor({3, 99, 0, 100, -1, 50, 7, 200}).reshape({8, 1}).realize();
  Tensor y = ((x - x.max(1, true)).exp() + 1).realize();
  EXPECT_EQ(((x - x.max(1, true)).exp() + 1).gather(1, index).to_vector<float>(),
            y.gather(1, index).to_vector<float>());
  Tensor mask = Tensor::arange(100) < 60, masked = mask.where(x, 7.0);
  EXPECT_EQ(masked.gather(1, index).to_vector<float>(),
            masked.clone().realize().gather(1, index).to_vector<float>());
  EXPECT_EQ(Tensor::arange(100).gather(0, index.reshape({8})).to_vector<int>(),
            (std::vector<int>{3, 99, 0, 0, 0, 50, 7, 0}));
  Tensor m = x.max(1, true).expand({8, 100}), stored = m.clone().realize();
  EXPECT_EQ(m.gather(1, index).to_vector<float>(), stored.gather(1, index).to_vector<float>());
}

}  // namespace
}  // namespace tinyshard::memory_test
