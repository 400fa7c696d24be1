// Layers divided over devices: weights that join several are divided each by itself, a block sends
// one all-reduce for each of its two pairs, forward and backward, and values, states and files are
// those of one device.
#include "core/nn/tensor_parallel.h"

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

#include "core/exec/state.h"
#include "core/exec/storage.h"
#include "multi/rewrite.h"
#include "tests/core/nn/fused_model.h"
#include "tests/message_of.h"

namespace tinyshard::tensor_parallel_test {
namespace {

using test::FusedBlock;
using test::FusedConfig;
using test::FusedModel;

bool has(const Mesh& mesh, const std::string& axis) {
  return std::ranges::any_of(mesh.axes(), [&](const MeshAxis& a) { return a.name == axis; });
}

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

class TensorParallel : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override {
    set_default_float(DType::F32);
    Runtime::shutdown();
  }
  static void devices(int count, const std::string& kind = "CPU") {
    Runtime::shutdown();
    Runtime::configure({.devices = {kind}, .devices_per_rank = count});
  }
};

using MakeOptimizer =
    std::function<std::unique_ptr<nn::optim::Optimizer>(const std::vector<Tensor>&)>;

template <class O, class Options>
MakeOptimizer made(const Options& options) {
  return [options](const std::vector<Tensor>& p) { return std::make_unique<O>(p, options); };
}

struct Training {
  std::string name;
  MakeOptimizer optimizer = made<nn::optim::AdamW>(nn::optim::AdamWOptions{.lr = 1e-2});
  FusedConfig config = {};
  bool captured = true, clip = false, sequence = false;
};

// Returns the losses of five steps, and the sum of all parameters behind them.
std::vector<double> losses(const Training& t, const std::optional<Mesh>& mesh) {
  set_default_float(DType::F64);
  Tensor::manual_seed(3);
  FusedModel model(t.config);
  std::vector<Tensor> params = nn::parameters(model);
  Tensor::realize(params);
  if (mesh && has(*mesh, "model")) test::divide(model, *mesh, "model");
  if (mesh && has(*mesh, "data")) nn::fully_shard(model, *mesh, "data");
  std::unique_ptr<nn::optim::Optimizer> optim = t.optimizer(params);
  auto run = [&](const Tensor& in) {
    TrainingMode on;
    optim->zero_grad();
    Tensor x = in;
    if (mesh) x = has(*mesh, "data") ? x.shard(*mesh, {{"data", Shard(0)}}) : x.shard(*mesh);
    if (t.sequence && mesh && has(*mesh, "model")) x = nn::sequence_parallel(x, *mesh, "model");
    Tensor loss = (model(x) - x.roll(1, 1)).square().mean().backward();
    if (t.clip) nn::clip_grad_norm(params, 0.5);
    optim->step();
    return loss;
  };
  Jit step = run;
  std::vector<double> list;
  for (int i = 0; i < 5; ++i) {
    Tensor in = ((Tensor::arange(4 * 6 * 16) * (7 + i % 3)) % 19).cast(DType::F64) / 19.0;
    in = in.reshape({4, 6, 16}).realize();
    list.push_back((t.captured ? step(in) : run(in)).item<double>());
  }
  for (const Tensor& p : params) list.push_back(p.sum().item<double>());
  return list;
}

void expect_equal(const std::vector<double>& a, const std::vector<double>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-9 * std::max(1.0, std::abs(b[i]))) << what << ", value " << i;
}

std::vector<Training> trainings() {
  using namespace nn::optim;
  const FusedConfig by_heads{.slicing = 1}, same{.groups = 4, .slicing = 2};
  return {
      {.name = "slices"},
      {.name = "heads first", .config = by_heads},
      {.name = "three, heads, head", .config = same},
      {.name = "equal slices, step by step", .config = {.groups = 4}, .captured = false},
      {.name = "clipped LAMB, checkpointed",
       .optimizer = made<LAMB>(LambOptions{.lr = 1e-2}),
       .config = {.checkpoint = true},
       .clip = true},
      {.name = "Muon", .optimizer = made<Muon>(MuonOptions{.lr = 1e-2}), .config = by_heads},
      {.name = "SGD with dropout",
       .optimizer = made<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9}),
       .config = {.dropout = 0.2}},
      {.name = "by sequence, with dropout", .config = {.dropout = 0.2}, .sequence = true},
      {.name = "by sequence, checkpointed",
       .config = {.groups = 4, .slicing = 2, .checkpoint = true},
       .clip = true,
       .sequence = true},
  };
}

TEST_F(TensorParallel, JoinedWeightsTrainAsOnOneDevice) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Training& t : trainings()) {
    const std::vector<double> one = losses(t, {});
    EXPECT_LT(one[4], one[0]) << t.name;
    devices(4);
    const Mesh both({{"data", 2}, {"model", 2}});
    std::vector<Mesh> meshes{both};
    if (t.name == "slices" || t.sequence)
      meshes = {Mesh({{"model", 1}}), Mesh({{"model", 2}}), both,
                Mesh({{"model", 2}, {"data", 2}})};
    if (t.config.groups == 4) meshes.push_back(Mesh({{"model", 4}}));
    for (const Mesh& mesh : meshes)
      expect_equal(losses(t, mesh), one, t.name + " on " + mesh.to_string());
    Runtime::shutdown();
  }
}

TEST_F(TensorParallel, JoinedWeightsTrainOverRanks) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  for (const Training& t : trainings()) {
    const std::vector<double> one = losses(t, {});
    expect_equal(losses(t, Mesh::world({{"data", -1}, {"model", 2}})), one, t.name);
  }
}

// Reductions of activations, and what else is sent, by a block with its gradients.
struct Traffic {
  int64_t reductions = 0, bytes = 0;
};
Traffic traffic(const FusedConfig& config, int n, bool backward) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = n});
  const Mesh mesh({{"model", n}});
  FusedModel model(config);
  test::divide(model, mesh, "model");
  std::vector<Tensor> params = nn::parameters(model);
  Tensor::realize(params);
  Tensor x = Tensor::zeros({2, 64, config.width}).contiguous().shard(mesh).realize();
  Tensor y = model(x);
  std::vector<Tensor> values{y};
  if (backward) {
    std::vector<Tensor> of = params;
    of.push_back(x);
    values = y.square().sum().gradient(of);
  }
  PlanSummary plan = summarize(values);
  Traffic t{0, plan.collective_bytes};
  for (const CollectiveItem& item : plan.collective_items) {
    EXPECT_EQ(item.op, "all_reduce") << item.purpose << " " << item.source;
    ++t.reductions;
  }
  return t;
}

TEST_F(TensorParallel, ABlockSendsOneReductionForEachPairOfLayers) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const FusedConfig& config :
       {FusedConfig{.layers = 1, .width = 128, .heads = 8, .groups = 4, .head = 16, .hidden = 256},
        FusedConfig{.layers = 1,
                    .width = 128,
                    .heads = 8,
                    .groups = 4,
                    .head = 16,
                    .hidden = 256,
                    .slicing = 1},
        FusedConfig{.layers = 1,
                    .width = 128,
                    .heads = 8,
                    .groups = 8,
                    .head = 16,
                    .hidden = 256,
                    .slicing = 2},
        FusedConfig{.layers = 1,
                    .width = 128,
                    .heads = 8,
                    .groups = 8,
                    .head = 16,
                    .hidden = 256,
                    .bias = false}}) {
    for (int n : {2, 4}) {
      const int64_t one = 2 * int64_t{2} * 64 * 128 * 4 * (n - 1) / n;  // an all-reduce
      const Traffic forward = traffic(config, n, false), both = traffic(config, n, true);
      EXPECT_EQ(forward.reductions, 2) << config.slicing << " on " << n;
      EXPECT_EQ(forward.bytes, 2 * one) << config.slicing << " on " << n;
      EXPECT_EQ(both.reductions, 4) << config.slicing << " on " << n;
      EXPECT_EQ(both.bytes, 4 * one) << config.slicing << " on " << n;
    }
  }
}

// Divided by sequence between layers: gathers before and reduce-scatters behind each pair, and the
// other way round in the backward pass; no weight moves. Vectors of norms and biases have gradients
// of all tokens, which are summed.
TEST_F(TensorParallel, BySequenceReductionsBecomeScattersAndGathers) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const auto& [heads, groups] : {std::pair{8, 4}, std::pair{8, 8}}) {
    for (int n : {2, 4}) {
      devices(n, "NULL");
      const Mesh mesh({{"model", n}});
      FusedModel model(
          {.layers = 1, .width = 128, .heads = heads, .groups = groups, .head = 16, .hidden = 256});
      test::divide(model, mesh, "model");
      std::vector<Tensor> of = nn::parameters(model);
      Tensor::realize(of);
      Tensor whole = Tensor::zeros({2, 64, 128}).contiguous().shard(mesh).realize();
      Tensor x = nn::sequence_parallel(whole, mesh, "model").realize();
      const int64_t half = int64_t{2} * 64 * 128 * 4 * (n - 1) / n, vector = 2 * 128 * 4;
      const PlanSummary forward = summarize(model(x));
      EXPECT_EQ(forward.collective_bytes, 4 * half) << n;
      EXPECT_EQ(forward.collective_kinds.at("all_gather over model"), 2 * half) << n;
      EXPECT_EQ(forward.collective_kinds.at("reduce_scatter over model"), 2 * half) << n;
      of.push_back(x);
      const PlanSummary both = summarize(model(x).square().sum().gradient(of));
      EXPECT_EQ(both.collective_kinds.at("all_gather over model"), 4 * half) << n;
      EXPECT_EQ(both.collective_kinds.at("reduce_scatter over model"), 4 * half) << n;
      EXPECT_LE(both.collective_bytes, 8 * half + 6 * vector) << n;
    }
  }
}

// Each product alone would gather a weight in place of tokens; the plan of the whole graph leaves the
// weights where they are, as it is told to where they are named.
TEST_F(TensorParallel, ThePlanOfTheWholeKnowsThatWeightsStay) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(2, "NULL");
  const Mesh mesh({{"model", 2}});
  int64_t told = 0;
  for (bool stay : {true, false}) {
    FusedModel model(
        {.layers = 1, .width = 128, .heads = 8, .groups = 4, .head = 16, .hidden = 256});
    test::divide(model, mesh, "model");
    std::vector<Tensor> of = nn::parameters(model);
    Tensor::realize(of);
    for (const Tensor& p : of) {
      if (!stay) Storage::of(*storage_node(p.state()->value))->stays = false;
    }
    Tensor whole = Tensor::zeros({2, 64, 128}).contiguous().shard(mesh).realize();
    of.push_back(nn::sequence_parallel(whole, mesh, "model").realize());
    const std::vector<Tensor> gradients = model(of.back()).square().sum().gradient(of);
    const PlanSummary plan = summarize(gradients);
    if (stay) {
      told = plan.collective_bytes;
      continue;
    }
    EXPECT_EQ(plan.collective_bytes, told);
    std::vector<UOp> roots;
    for (const Tensor& g : gradients) roots.push_back(g.uop());
    roots = without_names(roots);
    const double alone = try_plan(roots, {}).cost.movable_seconds;
    double seconds = 0;
    for (const CollectiveItem& c : plan.collective_items) seconds += c.seconds;
    EXPECT_LT(seconds, 0.9 * alone);
  }
}

// The optimizer and norms of gradients work on what each device holds.
TEST_F(TensorParallel, UpdatesOfJoinedWeightsSendNothing) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(2, "NULL");
  const Mesh mesh({{"model", 2}});
  FusedModel model({.layers = 1, .width = 128, .heads = 8, .groups = 4, .head = 16, .hidden = 256});
  test::divide(model, mesh, "model");
  std::vector<Tensor> params = nn::parameters(model);
  nn::optim::AdamW optim(params, {.lr = 1e-3});
  Tensor x = Tensor::zeros({2, 64, 128}).contiguous().shard(mesh).realize();
  Jit step = [&](Tensor in) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = model(in).square().mean().backward();
    nn::clip_grad_norm(params, 1.0);
    optim.step();
    return loss;
  };
  step(x);
  const PlanSummary plan = summarize(step);
  const int64_t one = 2 * int64_t{2} * 64 * 128 * 4 / 2;
  EXPECT_LE(plan.collective_bytes, 4 * one + 512);
}

TEST_F(TensorParallel, JoinedWeightsHaveTheirPublicValues) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  std::string folder = ::testing::TempDir() + "/tensor-parallel-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::filesystem::path file = std::filesystem::path(folder) / "model.safetensors",
                              again = std::filesystem::path(folder) / "again.safetensors",
                              checkpoint = std::filesystem::path(folder) / "checkpoint";
  devices(4);
  Tensor::manual_seed(5);
  const FusedModel whole(FusedConfig{});
  const nn::StateDict before = nn::state_dict(whole);
  nn::safe_save(before, file);
  auto expect_whole = [&](const nn::StateDict& state, const std::string& what) {
    for (const auto& [name, tensor] : state)
      EXPECT_EQ(tensor.to_vector<float>(), before.at(name).to_vector<float>()) << what << name;
  };
  for (const Mesh& mesh : {Mesh({{"model", 2}}), Mesh({{"data", 2}, {"model", 2}})}) {
    FusedModel model(FusedConfig{});
    test::divide(model, mesh, "model");
    if (has(mesh, "data")) nn::fully_shard(model, mesh, "data");
    nn::load_state_dict(model, nn::safe_load(file));
    const Sharding where = model.h[0].qkv.weight.sharding();
    EXPECT_EQ(where.placements[size_t(mesh.axis("model"))], Shard(0, {16, 8, 8}));
    expect_whole(nn::state_dict(model), "loaded ");
    nn::safe_save(nn::state_dict(model), again);
    expect_whole(nn::safe_load(again), "saved ");
    nn::save_checkpoint(nn::state_dict(model), checkpoint, 1);
    FusedModel next(FusedConfig{});
    test::divide(next, mesh, "model");
    nn::load_checkpoint(nn::state_dict(next), checkpoint);
    expect_whole(nn::state_dict(next), "checkpoint ");
    FusedModel one(FusedConfig{});
    nn::load_checkpoint(nn::state_dict(one), checkpoint);
    expect_whole(nn::state_dict(one), "checkpoint on one ");
    std::filesystem::remove_all(checkpoint);
  }
  // A device holds its share of each part, and those of a tensor placed by hand.
  const Mesh mesh({{"model", 2}});
  Tensor x = Tensor::arange(8).cast(DType::F32).shard(mesh, {{"model", Shard(0, {4, 2, 2})}});
  EXPECT_EQ(x.sharding().to_string(), "f32[8@model:2(4 + 2 + 2)]");
  EXPECT_EQ(x.local()[0].to_vector<float>(), (std::vector<float>{0, 1, 4, 6}));
  EXPECT_EQ(x.local()[1].to_vector<float>(), (std::vector<float>{2, 3, 5, 7}));
  EXPECT_EQ(x.to_vector<float>(), Tensor::arange(8).cast(DType::F32).to_vector<float>());
  std::filesystem::remove_all(folder);
}

// Ops that need the true order of a joined dim have it.
TEST_F(TensorParallel, AnyOpOfAJoinedDimIsRight) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(4);
  const Mesh mesh({{"data", 2}, {"model", 2}});
  Tensor::manual_seed(7);
  Tensor x = Tensor::rand({6, 16}, DType::F64).realize(),
         w = Tensor::rand({16, 6}, DType::F64).realize();
  const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> programs = {
      [](const Tensor& a, const Tensor&) { return a.cumsum(1); },
      [](const Tensor& a, const Tensor&) { return a.flip(1) + a; },
      [](const Tensor& a, const Tensor&) { return a.roll(3, 1) * a; },
      [](const Tensor& a, const Tensor&) { return a.softmax(1); },
      [](const Tensor& a, const Tensor&) { return a[{Slice(), Slice(3, 11)}] * 2; },
      [](const Tensor& a, const Tensor&) { return a[{Slice(), Slice(0, 12)}].exp(); },
      [](const Tensor& a, const Tensor&) { return a.argmax(1).cast(DType::F64); },
      [](const Tensor& a, const Tensor&) { return a.sort(1).first; },
      [](const Tensor& a, const Tensor& b) { return a.matmul(b); },
      [](const Tensor& a, const Tensor& b) { return b.matmul(a); },
      [](const Tensor& a, const Tensor&) { return a.matmul(a.T()); },
      [](const Tensor& a, const Tensor&) { return a.T().matmul(a); },
      [](const Tensor& a, const Tensor& b) { return a + b.T(); },
      [](const Tensor& a, const Tensor&) { return a.reshape({12, 8}).sum(1); },
      [](const Tensor& a, const Tensor&) { return a.T().reshape({8, 12}); },
      [](const Tensor& a, const Tensor&) { return a.max(1); },
      [](const Tensor& a, const Tensor&) { return a.cat({a}, 1); },
      [](const Tensor& a, const Tensor&) {
        return a * Tensor::arange(16).cast(DType::F64) + (Tensor::arange(16) < 5).cast(DType::F64);
      },
      [](const Tensor& a, const Tensor&) { return a.triu(1); },
  };
  for (size_t i = 0; i < programs.size(); ++i) {
    for (const Dims& sizes : {Dims{8, 4, 4}, Dims{8, 8}, Dims{2, 10, 4}}) {
      auto run = [&](const Tensor& a, const Tensor& b) {
        Tensor y = programs[i](a, b);
        std::vector<Tensor> all{y};
        if (i != 6) all.push_back((y * y).sum().gradient({a})[0]);
        return all;
      };
      std::vector<Tensor> right = run(x, w);
      std::vector<Tensor> got = run(x.shard(mesh, {{"model", Shard(1, sizes)}}).realize(),
                                    w.shard(mesh, {{"data", Shard(0)}}).realize());
      for (size_t k = 0; k < right.size(); ++k) {
        const std::vector<double> a = got[k].to_vector<double>(), b = right[k].to_vector<double>();
        ASSERT_EQ(a.size(), b.size());
        for (size_t e = 0; e < a.size(); ++e)
          ASSERT_NEAR(a[e], b[e], 1e-9 * std::max(1.0, std::abs(b[e])))
              << "program " << i << " result " << k << " element " << e << " parts "
              << sizes.size();
      }
    }
  }
}

struct NormedConvs {
  nn::Conv2d first{3, 4, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm norm{4};
  nn::Conv2d second{4, 3, 3, {.padding = 1}};
  TS_FIELDS(first, norm, second)
  Tensor operator()(const Tensor& x) const { return second(norm(first(x)).relu()); }
};

// A norm between two convolutions has weights, statistics and a count: the rule names the layer.
TEST_F(TensorParallel, ConvolutionsAndNormsMayBeDividedByChannels) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(2);
  set_default_float(DType::F64);
  auto losses = [](bool divided) {
    Tensor::manual_seed(3);
    const NormedConvs block;
    const Mesh mesh({{"model", 2}});
    if (divided) {
      nn::tensor_parallel(block, mesh, "model", {{"first|norm", Column}, {"second", Row}});
      EXPECT_EQ(block.norm.running_var.sharding().placements[0], Shard(0));
      EXPECT_EQ(block.norm.num_batches_tracked.sharding().placements[0], Replicate);
    }
    nn::optim::SGD optim(nn::parameters(block), {.lr = 0.1});
    std::vector<double> list;
    for (int i = 0; i < 4; ++i) {
      const TrainingMode on;
      optim.zero_grad();
      Tensor x = Tensor::arange(2 * 3 * 5 * 5).reshape({2, 3, 5, 5}).cast(DType::F64).sin();
      if (divided) x = x.shard(mesh);
      Tensor loss = (block(x) - x).square().mean().backward();
      optim.step();
      list.push_back(loss.item<double>());
    }
    list.push_back(block.norm.running_var.sum().item<double>());
    list.push_back(block.norm.num_batches_tracked.item<double>());
    return list;
  };
  const std::vector<double> one = losses(false), two = losses(true);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-12) << i;
  EXPECT_EQ(one.back(), 4);
}

// A batch of one row that is reshaped may lie as parts of another dim over an axis of one device:
// that one has all of it.
TEST_F(TensorParallel, AnAxisOfOneDeviceDividesNoSequence) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(2);
  const Mesh mesh({{"data", 1}, {"model", 2}});
  const Tensor rows = Tensor::arange(6, DType::F32).shard(mesh, {{"data", Shard(0)}});
  const Tensor x = rows.reshape({1, 6, 1}) * 2;
  EXPECT_TRUE(x.shard(mesh, {{"data", Shard(1)}}).sharding().placements[0].is_shard());
  for (const Tensor& each : {x, x.shard(mesh, {{"data", Shard(1)}})}) {
    const Tensor y = nn::sequence_parallel(each, mesh, "model");
    EXPECT_EQ(y.sharding().placements[1], Shard(1));
    EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{0, 2, 4, 6, 8, 10}));
  }
}

TEST_F(TensorParallel, MistakesOfPartsAreNamed) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(4);
  const Mesh mesh({{"data", 2}, {"model", 2}});
  auto expect = [](const std::function<void()>& f, const std::string& part) {
    const std::string text = test::message_of<UserError>(f);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  nn::Linear layer(4, 12);
  auto divide = [&](nn::TensorSplit split, const std::vector<int64_t>& parts) {
    nn::tensor_parallel(layer, mesh, "model",
                        {{.names = "weight", .split = split, .parts = parts}});
  };
  expect([&] { divide(Column, {1, 1, 2}); },
         "weight, f32[12, 4], has 12 along dim 0, which parts of 1 : 1 : 2 do not divide into "
         "multiples of the 2 devices along \"model\"");
  expect([&] { divide(Row, {1, 1}); }, "\"weight\" has parts, which only Column divides");
  expect([&] { divide(Column, {1, -1}); }, "has a part of -1");
  Tensor x = Tensor::zeros({12, 4});
  expect([&] { nn::sequence_parallel(x, mesh, "model", 2); }, "f32[12, 4] has no dim 2");
  expect([&] { nn::sequence_parallel(x, mesh, "sequence"); }, "no axis \"sequence\"");
  expect([&] { nn::sequence_parallel(x.shard(mesh, {{"data", Shard(1)}}), mesh, "model"); },
         "is divided over \"data\" already");
  expect([&] { x.shard(mesh, {{"model", Shard(0, {4, 4})}}); },
         "the parts of Shard(0, {4, 4}) add up to 8, but dim 0 of f32[12, 4] has 12");
  expect([&] { x.shard(mesh, {{"model", Shard(0, {3, 9})}}); },
         "a part of 3 places, which is no multiple of the 2 devices along \"model\"");
  expect([&] { x.shard(mesh, {{"data", Shard(0)}, {"model", Shard(0, {4, 8})}}); },
         "\"model\" divides dim 0 by parts, so \"data\" cannot divide it, too");
}

}  // namespace
}  // namespace tinyshard::tensor_parallel_test
