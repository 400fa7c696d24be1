// Activation checkpointing: the same bits, less memory.
#include "core/nn/checkpoint_activations.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/exec/context.h"
#include "core/exec/explain.h"
#include "core/exec/schedule_of.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"

namespace tinyshard::checkpoint_activations_test {
namespace {

struct Block {
  Block(int64_t width, double dropout)
      : norm(width), up(width, 4 * width), down(4 * width, width), dropout(dropout) {}
  nn::LayerNorm norm;
  nn::Linear up, down;
  double dropout;
  TS_FIELDS(norm, up, down)
  Tensor operator()(const Tensor& x) const { return x + down(up(norm(x)).gelu().dropout(dropout)); }
};

struct Net {
  Net(int64_t layers, int64_t width, bool checkpoint, double dropout = 0)
      : blocks(nn::layers<Block>(layers, width, dropout)), checkpoint(checkpoint) {}
  std::vector<Block> blocks;
  bool checkpoint;
  TS_FIELDS(blocks)
  Tensor loss(Tensor x) const {
    for (const Block& b : blocks) x = checkpoint ? nn::checkpoint_activations(b, x) : b(x);
    return x.square().mean();
  }
};

class CheckpointActivations : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

std::vector<double> losses(bool checkpoint, const Mesh& mesh, bool captured) {
  Tensor::manual_seed(5);
  Net net(3, 16, checkpoint, 0.1);
  nn::data_parallel(net, mesh, "data");
  nn::optim::AdamW optim(nn::parameters(net), {.lr = 1e-2});
  Tensor::realize(nn::parameters(net));  // a first run that also makes them may round otherwise
  auto body = [&](const Tensor& x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = net.loss(x.shard(mesh, {{"data", Shard(0)}})).backward();
    optim.step();
    return loss;
  };
  Jit step = [&](Tensor x) { return body(x); };
  Tensor x = Tensor::randn({8, 16}).realize();
  std::vector<double> list;
  for (int i = 0; i < 5; ++i) list.push_back((captured ? step(x) : body(x)).item<double>());
  return list;
}

TEST_F(CheckpointActivations, ChangesNoBit) {
  Runtime::configure({.devices = {"CPU:0", "CPU:1"}});
  for (const Mesh& mesh : {Mesh::of({"CPU:0"}), Mesh::of({"CPU:0", "CPU:1"})}) {
    for (bool captured : {true, false}) {
      std::vector<double> kept = losses(false, mesh, captured);
      EXPECT_EQ(kept, losses(true, mesh, captured)) << mesh.to_string() << captured;
      EXPECT_LT(kept.back(), kept.front());
    }
  }
}

TEST_F(CheckpointActivations, KeepsOnlyWhatEntersABlock) {
  Runtime::configure({.devices = {"NULL"}});
  constexpr int64_t kTokens = 4096, kWidth = 32, kEntering = kTokens * kWidth * 4;
  auto peak = [&](int64_t layers, bool checkpoint) {
    Net net(layers, kWidth, checkpoint);
    nn::optim::SGD optim(nn::parameters(net), {.lr = 0.1});
    Jit step = [&](Tensor x) {
      TrainingMode on;
      optim.zero_grad();
      Tensor loss = net.loss(x).backward();
      optim.step();
      return loss;
    };
    step(Tensor::empty({kTokens, kWidth}));
    return schedule_of(step.captured_step()).arena_bytes;
  };
  EXPECT_GT(peak(16, false) - peak(8, false), 8 * 9 * kEntering);
  int64_t each = (peak(16, true) - peak(8, true)) / 8;
  EXPECT_LE(each, kEntering + kEntering / 4);
  EXPECT_GE(each, kEntering);
  EXPECT_LT(peak(16, true), peak(16, false) / 4);
}

TEST_F(CheckpointActivations, TakesSeveralInputsAndWhatIsAround) {
  Tensor a = Tensor::randn({4, 4}).realize(), w = Tensor::randn({4, 4}).realize();
  Tensor outside = (w * 2).tanh();
  auto f = [&](const Tensor& x, const Tensor& y) { return (x.matmul(w) * y + outside).sigmoid(); };
  auto gradients = [&](const Tensor& value) {
    std::vector<double> all;
    for (const Tensor& g : value.sum().gradient({a, w})) {
      for (double v : g.to_vector<double>()) all.push_back(v);
    }
    return all;
  };
  Tensor x = a.exp(), y = a.sin();
  std::vector<double> plain = gradients(f(x, y)),
                      again = gradients(nn::checkpoint_activations(f, x, y));
  ASSERT_EQ(plain.size(), again.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain[i], again[i], 1e-5);
  // A block in a block, and the second derivative.
  auto inner = [&](const Tensor& t) { return t.sin() * t; };
  auto outer = [&](const Tensor& t) { return nn::checkpoint_activations(inner, t.exp()).sum(); };
  Tensor once = outer(a).gradient({a})[0],
         twice = nn::checkpoint_activations(outer, a).gradient({a})[0];
  EXPECT_EQ(once.to_vector<float>(), twice.to_vector<float>());
  auto second = [&](auto g) {
    return g(a).gradient({a})[0].sum().gradient({a})[0].template to_vector<float>();
  };
  std::vector<float> exact = second([&](const Tensor& t) { return inner(t.exp()).sum(); }),
                     again_twice = second(outer);
  for (size_t i = 0; i < exact.size(); ++i)
    EXPECT_NEAR(exact[i], again_twice[i], 1e-4 * std::abs(exact[i]));
}

TEST_F(CheckpointActivations, AnInputMayBeOverwrittenAfterwards) {
  Tensor p = Tensor::ones({3}).is_param_().realize();
  TrainingMode on;
  nn::optim::SGD optim({p}, {.lr = 0.5});
  Jit step = [&] {
    TrainingMode inside;
    optim.zero_grad();
    Tensor loss =
        nn::checkpoint_activations([](const Tensor& x) { return x.square().exp(); }, p).sum();
    loss.backward();
    optim.step();
    return loss;
  };
  step();
  // 1 - 0.5 * 2 e
  for (double v : p.to_vector<double>()) EXPECT_NEAR(v, 1 - std::exp(1.0), 1e-5);
}

// The gradient does not read again what the same kernel has just written.
TEST_F(CheckpointActivations, AnInputMayBeOverwrittenInAnotherOrder) {
  auto block = [](const Tensor& x) { return x.square().exp(); };
  auto updated = [&](bool again) {
    Tensor p = (Tensor::arange(4096) * 0.1).sin().contiguous().is_param_().realize();
    Tensor y = again ? nn::checkpoint_activations(block, p) : block(p);
    p.assign(y.sum().gradient({p})[0].flip(0) * 0.5);
    return p.to_vector<float>();
  };
  EXPECT_EQ(updated(true), updated(false));
}

}  // namespace
}  // namespace tinyshard::checkpoint_activations_test
