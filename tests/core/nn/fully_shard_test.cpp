// Fully sharded training: the values of one device, each parameter's bytes sent three times, and
// memory that shrinks with the number of devices.
#include "core/nn/fully_shard.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/nn/llama.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace tinyshard::fully_shard_test {
namespace {

using test::Llama;
using test::LlamaConfig;

constexpr LlamaConfig kSmall{.layers = 3, .type = DType::F64};

const std::vector<nn::TensorParallelRule> kLlama = {
    {"h.*.wq|wk|wv|w1|w3", Column}, {"h.*.wo|w2", Row}, {"embed|head", Vocabulary}};

struct Training {
  std::string name;
  std::function<std::unique_ptr<nn::optim::Optimizer>(const std::vector<Tensor>&)> optimizer;
  bool captured = true, clip = false, checkpoint = false, accumulate = false;
  nn::FullyShardOptions options = {};
};

template <class O>
auto made(const auto& options) {
  return [options](const std::vector<Tensor>& p) -> std::unique_ptr<nn::optim::Optimizer> {
    return std::make_unique<O>(p, options);
  };
}

bool has(const Mesh& mesh, const std::string& axis) {
  return std::ranges::any_of(mesh.axes(), [&](const MeshAxis& a) { return a.name == axis; });
}

std::vector<double> losses(const Training& t, const std::optional<Mesh>& mesh,
                           int steps = test::kSanitized ? 3 : 20) {
  set_default_float(DType::F64);
  Tensor::manual_seed(3);
  LlamaConfig config = kSmall;
  config.checkpoint = t.checkpoint;
  Llama model(config);
  std::vector<Tensor> params = nn::parameters(model);
  Tensor::realize(params);
  if (mesh && has(*mesh, "model")) nn::tensor_parallel(model, *mesh, "model", kLlama);
  if (mesh && has(*mesh, "data")) nn::fully_shard(model, *mesh, "data", t.options);
  std::unique_ptr<nn::optim::Optimizer> optim = t.optimizer(params);
  nn::GradientSum sum(params);
  auto placed = [&](const Tensor& x) {
    if (!mesh) return x;
    return has(*mesh, "data") ? x.shard(*mesh, {{"data", Shard(0)}}) : x.shard(*mesh);
  };
  auto backward = [&](const Tensor& tokens) {
    TrainingMode on;
    optim->zero_grad();
    Tensor x = placed(tokens);
    return model.loss(x, x.roll(1, 1)).backward();
  };
  // Two parts of a batch, of which the second does not divide among the devices.
  auto backward_of_all = [&](const Tensor& tokens) {
    if (!t.accumulate) return backward(tokens);
    Tensor first = backward(tokens[Slice(0, 5)]);
    sum.add();
    Tensor second = backward(tokens[Slice(5, 8)]);
    sum.add();
    return first + second;
  };
  auto update = [&] {
    TrainingMode on;
    if (t.accumulate) sum.take(0.5);
    if (t.clip) nn::clip_grad_norm(params, 0.5);
    optim->step();
  };
  Jit step = [&](Tensor tokens) {
    Tensor loss = backward_of_all(tokens);
    update();
    return loss;
  };
  std::vector<double> list;
  for (int i = 0; i < steps; ++i) {
    Tensor tokens = (Tensor::arange(8 * 6) * (7 + i % 3)) % 19;
    tokens = tokens.reshape({8, 6}).realize();
    Tensor loss;
    if (t.captured) {
      loss = step(tokens);
    } else {
      loss = backward_of_all(tokens);
      update();
    }
    list.push_back(loss.item<double>());
  }
  set_default_float(DType::F32);
  return list;
}

void expect_equal(const std::vector<double>& a, const std::vector<double>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-9 * std::abs(b[i])) << what << ", step " << i;
}

std::vector<Training> trainings() {
  using namespace nn::optim;
  return {
      {"AdamW", made<AdamW>(AdamWOptions{.lr = 1e-2})},
      {"AdamW, step by step", made<AdamW>(AdamWOptions{.lr = 1e-2}), false},
      {"clipped SGD", made<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9}), true, true},
      {"checkpointed Adam", made<Adam>(AdamOptions{.lr = 1e-2}), true, true, true},
      {"accumulated LAMB", made<LAMB>(LambOptions{.lr = 1e-2}), true, true, false, true},
      {"LARS", made<LARS>(LarsOptions{.lr = 0.1}), true, false, true},
      {"kept AdamW",
       made<AdamW>(AdamWOptions{.lr = 1e-2}),
       true,
       false,
       false,
       false,
       {.blocks = "h.*", .prefetch = 2, .keep = true}},
      {"without prefetch",
       made<AdamW>(AdamWOptions{.lr = 1e-2}),
       true,
       false,
       true,
       false,
       {.prefetch = 0}},
  };
}

// Each optimizer with clipping, accumulation and checkpointed activations at once.
std::vector<Training> combined() {
  using namespace nn::optim;
  return {
      {"SGD", made<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9}), true, true, true, true},
      {"AdamW", made<AdamW>(AdamWOptions{.lr = 1e-2}), true, true, true, true},
      {"LAMB", made<LAMB>(LambOptions{.lr = 1e-2}), true, true, true, true},
      {"LARS", made<LARS>(LarsOptions{.lr = 0.1}), true, true, true, true},
      {"Muon", made<Muon>(MuonOptions{.lr = 1e-2}), true, true, true, true},
  };
}

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

class FullyShard : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

TEST_F(FullyShard, TrainsAsOneDevice) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Training& t : trainings()) {
    const std::vector<double> one = losses(t, {});
    EXPECT_LT(one.back(), one.front()) << t.name;
    const bool plain = t.name == "AdamW" || t.checkpoint;
    for (int devices : {1, 3, 4}) {
      if (!plain && devices != 3) continue;
      Runtime::shutdown();
      Runtime::configure({.devices = {"CPU"}, .devices_per_rank = devices});
      expect_equal(losses(t, Mesh({{"data", devices}})), one, t.name + std::to_string(devices));
    }
    if (!plain) continue;
    expect_equal(losses(t, Mesh({{"other", 2}, {"data", 2}})), one, t.name + ", 2 x 2");
  }
}

TEST_F(FullyShard, EachOptimizerTrainsOnPartsClippedAccumulatedAndCheckpointed) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Training& t : combined()) {
    const std::vector<double> one = losses(t, {}, 6);
    EXPECT_LT(one.back(), one.front()) << t.name;
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
    expect_equal(losses(t, Mesh({{"data", 4}}), 6), one, t.name);
    expect_equal(losses(t, Mesh({{"data", 2}, {"model", 2}}), 6), one, t.name + ", 2 x 2");
  }
}

// Three steps after a checkpoint of three, or from the one that is in the folder.
template <class Optimizer>
std::vector<double> steps_around_a_checkpoint(const std::filesystem::path& folder,
                                              const std::optional<Mesh>& mesh, bool saves) {
  set_default_float(DType::F64);
  Tensor::manual_seed(saves ? 3 : 4);
  Llama model(kSmall);
  if (mesh && has(*mesh, "model")) nn::tensor_parallel(model, *mesh, "model", kLlama);
  if (mesh) nn::fully_shard(model, *mesh, "data");
  Optimizer optim(nn::parameters(model), {.lr = 1e-2});
  nn::StateDict state = nn::state_dict(model, "model");
  state.merge(nn::state_dict(optim, "optimizer"));
  auto step = [&](int i) {
    TrainingMode on;
    Tensor x = ((Tensor::arange(8 * 6) * (7 + i)) % 19).reshape({8, 6});
    if (mesh) x = x.shard(*mesh, {{"data", Shard(0)}});
    optim.zero_grad();
    Tensor loss = model.loss(x, x.roll(1, 1)).backward();
    optim.step();
    return loss.item<double>();
  };
  if (saves) {
    for (int i = 0; i < 3; ++i) step(i);
    nn::save_checkpoint(state, folder, 3);
  } else {
    nn::load_checkpoint(state, folder);
  }
  std::vector<double> list;
  for (int i = 3; i < 6; ++i) list.push_back(step(i));
  set_default_float(DType::F32);
  return list;
}

template <class Optimizer>
void expect_checkpoints_to_go_on(const std::string& name) {
  std::string folder = ::testing::TempDir() + "/fully-shard-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  auto on = [&](int devices, const std::vector<MeshAxis>& axes, bool saves) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = devices});
    std::optional<Mesh> mesh;
    if (!axes.empty()) mesh.emplace(axes);
    return steps_around_a_checkpoint<Optimizer>(folder, mesh, saves);
  };
  const std::vector<double> four = on(4, {{"data", 4}}, true);
  expect_equal(on(2, {{"data", 2}}, false), four, name + ", on two");
  expect_equal(on(1, {}, false), four, name + ", on one");
  expect_equal(on(3, {{"data", 3}}, false), four, name + ", on three");
  expect_equal(on(4, {{"data", 2}, {"model", 2}}, false), four, name + ", on 2 x 2");
  std::filesystem::remove_all(folder);
}

TEST_F(FullyShard, ACheckpointOfFourDevicesGoesOnOnAnyNumber) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  expect_checkpoints_to_go_on<nn::optim::AdamW>("AdamW");
  expect_checkpoints_to_go_on<nn::optim::Muon>("Muon");
}

TEST_F(FullyShard, LayersAreDividedToo) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const std::vector<Training> all = trainings();
  for (size_t i : {size_t(0), size_t(3)}) {
    const std::vector<double> one = losses(all[i], {});
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
    for (const Mesh& mesh : {Mesh({{"model", 2}}), Mesh({{"model", 3}}), Mesh({{"model", 4}}),
                             Mesh({{"data", 2}, {"model", 2}}), Mesh({{"model", 2}, {"data", 2}})})
      expect_equal(losses(all[i], mesh), one, all[i].name + " on " + mesh.to_string());
  }
}

// A state dict of sharded parameters has the values of the whole model, and loads those of one.
TEST_F(FullyShard, StatesAreThoseOfTheWholeModel) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 3});
  const Mesh mesh({{"data", 3}});
  nn::Linear layer(5, 7);
  const nn::StateDict before = nn::state_dict(nn::Linear(5, 7));
  nn::fully_shard(layer, mesh, "data");
  nn::load_state_dict(layer, before);
  EXPECT_EQ(layer.weight.sharding().to_string(), "f32[7, 5@data:3]");
  EXPECT_EQ(layer.bias.sharding().to_string(), "f32[7@data:3]");
  for (const auto& [name, tensor] : nn::state_dict(layer))
    EXPECT_EQ(tensor.to_vector<float>(), before.at(name).to_vector<float>()) << name;
}

TEST_F(FullyShard, ArithmeticOnParametersStaysInParts) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = 4});
  const Mesh mesh({{"data", 4}});
  nn::Linear layer(16, 8);
  nn::fully_shard(layer, mesh, "data");
  Tensor::realize(nn::parameters(layer));
  Tensor average = Tensor::zeros({8, 16}).shard_like(layer.weight).realize();
  EXPECT_EQ(summarize(average * 0.9 + layer.weight * 0.1).collective_bytes, 0);
  EXPECT_LE(summarize(layer.weight.square().sum()).collective_bytes, 8);
  Tensor x = Tensor::ones({4, 16}).shard(mesh, {{"data", Shard(0)}}).realize();
  EXPECT_EQ(summarize(layer(x)).collective_bytes, (8 * 16 + 8) * 4 * 3 / 4);
}

TEST_F(FullyShard, MistakesNameTheParameter) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  const Mesh mesh({{"data", 2}, {"model", 2}}), other({{"all", 4}});
  auto message = [](const std::function<void()>& f) { return test::message_of<UserError>(f); };
  nn::Linear layer(4, 8);
  auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(
      message([&] { nn::fully_shard(layer, mesh, "dat"); }),
      "fully_shard: mesh has no axis \"dat\"; it has \"data\", \"model\"  (fully_shard_test.cpp:");
  expect(message([&] { nn::fully_shard(layer, mesh, "data", {.blocks = "h.*"}); }),
         "no name begins with \"h.*\"; the first of 2 is bias");
  expect(message([&] { nn::fully_shard(layer, mesh, "data", {.prefetch = -1}); }), "-1");
  expect(message([&] { nn::tensor_parallel(layer, mesh, "model", {{"wieght", Column}}); }),
         "no name begins with \"wieght\"");
  expect(message(
             [&] { nn::tensor_parallel(layer, mesh, "model", {{"weight", Column}, {"w*", Row}}); }),
         "weight is named by \"weight\" and by \"w*\"");
  nn::Linear narrow(1, 8);
  expect(message([&] { nn::tensor_parallel(narrow, mesh, "model", {{"weight", Row}}); }),
         "has 1 along dim 1, which is not enough for 2 devices along \"model\"");
  nn::fully_shard(layer, mesh, "data");
  expect(message([&] { nn::fully_shard(layer, mesh, "data"); }),
         "is divided over \"data\" already");
  expect(message([&] { nn::fully_shard(layer, other, "all"); }), "lies on mesh(data=2, model=2)");
}

TEST_F(FullyShard, TrainsAsOneDeviceOverRanks) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  for (const Training& t : trainings()) {
    const std::vector<double> one = losses(t, {});
    expect_equal(losses(t, Mesh::world({{"data", -1}})), one, t.name);
  }
  for (const Training& t : combined())
    expect_equal(losses(t, Mesh::world({{"data", -1}}), 6), losses(t, {}, 6), t.name);
}

}  // namespace
}  // namespace tinyshard::fully_shard_test
