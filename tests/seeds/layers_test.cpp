// "nn (Neural Networks)": layers, optimizers and files. Random weights are other ones here, so what
// the page shows of them is their shape and the statistics of what comes out.
#include <string>
#include <vector>

#include "tests/io/temp_folder.h"
#include "tests/seeds/printed.h"

namespace tinyshard::seeds::layers_test {
namespace {

// The page prints mean and deviation behind each norm: of n numbers that were normalised together
// the deviation is near the root of n / (n - 1).
void expect_normalised(const Tensor& t, double deviation) {
  EXPECT_NEAR(t.mean().item<float>(), 0, 1e-4);
  EXPECT_NEAR(t.std().item<float>(), deviation, 2e-3);
}

Tensor between_1_and_3(const Ints& shape) {
  Tensor::manual_seed(42);
  return Tensor::rand(shape) * 2 + 1;
}

TEST(SeedLayers, BatchNorm) {
  nn::BatchNorm norm(3);
  Tensor t = Tensor::rand({2, 3, 4, 4});
  Tensor out = norm(t);  // not in training: running statistics of 0 and 1
  EXPECT_TRUE(out.allclose(t, 1e-4, 1e-5));
}

TEST(SeedLayers, Convolutions) {
  EXPECT_EQ(nn::Conv1d(1, 1, 3)(Tensor::rand({1, 1, 4})).shape(), (Dims{1, 1, 2}));
  EXPECT_EQ(nn::Conv2d(1, 1, 3)(Tensor::rand({1, 1, 4, 4})).shape(), (Dims{1, 1, 2, 2}));
  EXPECT_EQ(nn::ConvTranspose1d(1, 1, 3)(Tensor::rand({1, 1, 4})).shape(), (Dims{1, 1, 6}));
  EXPECT_EQ(nn::ConvTranspose2d(1, 1, 3)(Tensor::rand({1, 1, 4, 4})).shape(), (Dims{1, 1, 6, 6}));
}

TEST(SeedLayers, LinearAndEmbedding) {
  nn::Linear lin(3, 4);
  Tensor t = Tensor::rand({2, 3});
  EXPECT_TRUE(lin(t).allclose(t.matmul(lin.weight.T()) + lin.bias, 1e-4, 1e-5));
  nn::Embedding emb(10, 3);
  Tensor rows = emb(Tensor{1, 2, 3, 1});
  EXPECT_EQ(rows.shape(), (Dims{4, 3}));
  EXPECT_TRUE(rows[0].allclose(rows[3], 0, 0));
  EXPECT_FALSE(rows[0].allclose(rows[1]));
}

TEST(SeedLayers, Norms) {
  expect_normalised(nn::GroupNorm(2, 12)(between_1_and_3({2, 12, 4, 4})), 1.0012884);
  expect_normalised(nn::InstanceNorm(3)(between_1_and_3({2, 3, 4, 4})), 1.0052325);
  expect_normalised(nn::LayerNorm(3)(between_1_and_3({2, 5, 3})), 1.0169996);
  expect_normalised(nn::LayerNorm2d(3)(between_1_and_3({2, 3, 4, 4})), 1.0051965);
}

TEST(SeedLayers, RmsNorm) {
  Tensor t = Tensor::arange(12, DType::F32).reshape({3, 4});
  prints(nn::RMSNorm(4)(t), Tensor{{0.0, 0.5345, 1.069, 1.6036},
                                   {0.7127, 0.8909, 1.069, 1.2472},
                                   {0.8363, 0.9409, 1.0454, 1.15}});
}

TEST(SeedLayers, LstmCell) {
  nn::LSTMCell cell(3, 5);
  auto [h, c] = cell(Tensor::rand({2, 3}));
  EXPECT_EQ(h.shape(), (Dims{2, 5}));
  EXPECT_EQ(c.shape(), (Dims{2, 5}));
}

// With the defaults of the page one step goes against the gradient.
template <class Optimizer>
void expect_a_step_down() {
  TrainingMode on;
  Tensor w{{1.0, -2.0}, {3.0, 0.5}};
  w.is_param_();
  Optimizer optim({w});
  const float before = w.square().sum().item<float>();
  w.square().sum().backward();
  optim.step();
  EXPECT_LT(w.square().sum().item<float>(), before);
}

TEST(SeedOptimizers, StepDown) {
  expect_a_step_down<nn::optim::SGD>();
  expect_a_step_down<nn::optim::LARS>();
  expect_a_step_down<nn::optim::AdamW>();
  expect_a_step_down<nn::optim::Adam>();
  expect_a_step_down<nn::optim::LAMB>();
  expect_a_step_down<nn::optim::Muon>();
}

struct Net {
  nn::Linear l1{4, 5}, l2{5, 6};
  TS_FIELDS(l1, l2)
};

TEST(SeedFiles, StateDicts) {
  Net net, other;
  const nn::StateDict state = nn::state_dict(net);
  std::vector<std::string> names;
  for (const auto& [name, value] : state) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"l1.bias", "l1.weight", "l2.bias", "l2.weight"}));
  EXPECT_EQ(nn::parameters(net).size(), 4u);
  nn::load_state_dict(other, state);
  EXPECT_TRUE(other.l2.weight.allclose(net.l2.weight, 0, 0));
}

TEST(SeedFiles, Safetensors) {
  const test::TempFolder folder;
  const auto path = folder.path() / "test.safetensors";
  safe_save(nn::StateDict{{"t", Tensor{1, 2, 3}}}, path);
  prints(safe_load(path).at("t"), Tensor{1, 2, 3});
}

}  // namespace
}  // namespace tinyshard::seeds::layers_test
