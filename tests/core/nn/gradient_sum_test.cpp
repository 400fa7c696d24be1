// Gradient accumulation: what parts of a batch add up to.
#include "core/nn/gradient_sum.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/nn/nn.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"

namespace tinyshard {
namespace {

class GradientSumTest : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

TEST_F(GradientSumTest, PartsGiveTheGradientOfTheWhole) {
  Tensor w = Tensor::ones({3}, DType::F64).is_param_(), x = Tensor::randn({4, 3}, DType::F64);
  x.realize();
  (x * w).square().mean().backward();
  std::vector<double> whole = w.grad().to_vector<double>();
  w.set_grad({});
  nn::GradientSum sum({w});
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < 4; ++i) {
      (x[i] * w).square().mean().backward();
      sum.add();
      EXPECT_FALSE(w.grad().defined());
    }
    sum.take(0.25);
    std::vector<double> parts = w.grad().to_vector<double>();
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(parts[i], whole[i], 1e-12) << round;
    w.set_grad({});
  }
}

// Each device keeps its own terms: only the update communicates.
TEST_F(GradientSumTest, TermsMeetOnceAStep) {
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = 4});
  Mesh mesh = Mesh::world({{"data", -1}});
  nn::Linear net(16, 16);
  nn::data_parallel(net, mesh, "data");
  nn::optim::SGD optim(nn::parameters(net), {.lr = 0.1});
  nn::GradientSum sum(optim.params());
  Jit part = [&](Tensor x) {
    TrainingMode on;
    optim.zero_grad();
    net(x.shard(mesh, {{"data", Shard(0)}})).square().mean().backward();
    sum.add();
  };
  Jit update = [&] {
    TrainingMode on;
    sum.take(0.5);
    optim.step();
  };
  part(Tensor::empty({8, 16}));
  update();
  EXPECT_EQ(summarize(part).collectives, 0);
  EXPECT_EQ(summarize(update).collectives, 1);
}

TEST_F(GradientSumTest, MistakesAreNamed) {
  Tensor w = Tensor::ones({3}).is_param_();
  nn::GradientSum sum({w});
  EXPECT_THROW(sum.take(1), UserError);
  EXPECT_THROW(sum.add(), UserError);
}

}  // namespace
}  // namespace tinyshard
