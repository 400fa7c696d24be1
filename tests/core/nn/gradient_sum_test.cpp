// Gradient accumulation: what parts of a batch add up to.
#include "core/nn/gradient_sum.h"

#include <map>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/nn/nn.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"

namespace tinyshard::gradient_sum_test {
namespace {

class GradientSumTest : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override {
    set_default_float(DType::F32);
    Runtime::shutdown();
  }
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

// A first batch that is divided, and others that are not, or along another dim: the rest of an epoch.
TEST_F(GradientSumTest, BatchesLieAsTheyLike) {
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 6});
  set_default_float(DType::F64);
  using Rows = std::vector<AxisPlacement>;
  struct Case {
    Mesh mesh;
    std::vector<Rows> batches;  // of each how it lies; then one on a device alone
    bool fully = false;
  };
  const Mesh line({{"data", 3}}), grid({{"data", 2}, {"model", 3}});
  const Rows rows{{"data", Shard(0)}}, columns{{"data", Shard(1)}}, whole{};
  const std::vector<Case> cases{
      {line, {rows, whole, columns, rows}},
      {line, {whole, rows, columns}},
      {line, {columns, whole, rows}},
      {line, {rows, whole, columns}, true},
      {grid, {rows, whole, {{"data", Shard(0)}, {"model", Shard(0)}}, columns}},
      {grid, {{{"data", Shard(0)}, {"model", Shard(0)}}, whole, rows, {{"model", Shard(1)}}}},
      {grid, {{{"model", Shard(0)}}, rows, {{"model", Shard(0)}, {"data", Shard(1)}}, whole}},
  };
  auto batch = [](int64_t i) {
    return ((Tensor::arange(60).reshape({6, 10}) * (7 + i) % 11).cast(DType::F64) / 8).realize();
  };
  for (size_t c = 0; c < cases.size(); ++c) {
    const Case& on = cases[c];
    auto sums = [&](bool alone, bool captured) {
      Tensor::manual_seed(3);
      nn::Linear net(10, 5);
      if (!alone && on.fully)
        nn::fully_shard(net, on.mesh, "data");
      else if (!alone)
        nn::data_parallel(net, on.mesh, "data");
      nn::GradientSum sum(nn::parameters(net));
      auto add = [&](Tensor x) {
        const TrainingMode training;
        const Tensor loss = net(x).square().mean().backward();
        sum.add();
        return loss;
      };
      std::vector<double> all;
      std::map<size_t, Jit<decltype(add)>> steps;
      for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i <= on.batches.size(); ++i) {
          Tensor x = batch(int64_t(i));
          if (!alone && i < on.batches.size()) x = x.shard(on.mesh, on.batches[i]).realize();
          if (captured)
            steps.try_emplace(i, add).first->second(x);
          else
            add(x);
        }
        sum.take(0.25);
        for (const Tensor& p : nn::parameters(net)) {
          for (double g : p.grad().to_vector<double>()) all.push_back(g);
          p.set_grad({});
        }
      }
      return all;
    };
    const std::vector<double> want = sums(true, false);
    for (bool captured : {false, true}) {
      const std::vector<double> got = sums(false, captured);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-12) << "case " << c << (captured ? ", captured" : "");
    }
  }
}

// The odd batch sends no more than its gradient: the sums of the others stay terms.
TEST_F(GradientSumTest, AWholeBatchSendsNothing) {
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = 4});
  const Mesh mesh = Mesh::world({{"data", -1}});
  nn::Linear net(16, 16);
  nn::data_parallel(net, mesh, "data");
  nn::GradientSum sum(nn::parameters(net));
  for (const std::vector<AxisPlacement>& rows :
       {std::vector<AxisPlacement>{{"data", Shard(0)}}, std::vector<AxisPlacement>{}}) {
    Jit part = [&](Tensor x) {
      const TrainingMode on;
      net(x).square().mean().backward();
      sum.add();
    };
    part(Tensor::zeros({8, 16}).contiguous().shard(mesh, rows).realize());
    EXPECT_EQ(summarize(part).collectives, 0) << rows.size();
  }
}

// A gradient that is divided along a dim of the parameter needs no communication to become a term
// of the sum. With a batch that is divided by columns, the step completes the products of the
// layer, and sends nothing else.
TEST_F(GradientSumTest, DividedGradientsAreTerms) {
  for (int count : {4, 8}) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = count});
    const Mesh mesh = Mesh::world({{"data", -1}});
    nn::Linear net(64, 32);
    nn::data_parallel(net, mesh, "data");
    nn::GradientSum sum(nn::parameters(net));
    for (int dim : {0, 1}) {
      Jit part = [&](Tensor x) {
        const TrainingMode on;
        net(x).square().mean().backward();
        sum.add();
      };
      part(Tensor::zeros({16, 64}).contiguous().shard(mesh, {{"data", Shard(dim)}}).realize());
      const double products = dim * 2 * (count - 1) / double(count) * 16 * 32 * 4;
      EXPECT_LE(double(summarize(part).collective_bytes), 1.1 * products) << count;
    }
  }
}

TEST_F(GradientSumTest, MistakesAreNamed) {
  Tensor w = Tensor::ones({3}).is_param_();
  nn::GradientSum sum({w});
  EXPECT_THROW(sum.take(1), UserError);
  EXPECT_THROW(sum.add(), UserError);
}

}  // namespace
}  // namespace tinyshard::gradient_sum_test
