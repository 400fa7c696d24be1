// Pipeline parallel training: the losses of one device, alone and with data, tensor and fully sharded
// parallelism, in one process and over ranks.
#include "core/nn/pipeline.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/exec/executable.h"
#include "tests/core/nn/pipeline_model.h"
#include "tests/message_of.h"

namespace tinyshard {
namespace {

using test::has_axis;
using test::Llama;
using test::LlamaConfig;

constexpr LlamaConfig kSmall{.layers = 4, .type = DType::F64};
constexpr int64_t kBatch = 16, kLength = 6;

const std::vector<nn::TensorParallelRule> kLlama = {
    {"h.*.wq|wk|wv|w1|w3", Column}, {"h.*.wo|w2", Row}, {"embed|head", Vocabulary}};

struct Training {
  std::string name;
  std::function<std::unique_ptr<nn::optim::Optimizer>(const std::vector<Tensor>&)> optimizer;
  int64_t micro_batches = 4;
  bool captured = true, clip = false, checkpoint = false, accumulate = false, tied = false;
};

template <class O>
auto made(const auto& options) {
  return [options](const std::vector<Tensor>& p) -> std::unique_ptr<nn::optim::Optimizer> {
    return std::make_unique<O>(p, options);
  };
}

std::vector<Training> trainings() {
  using namespace nn::optim;
  const auto sgd = made<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9});
  const auto adam = made<AdamW>(AdamWOptions{.lr = 1e-2});
  return {
      {.name = "AdamW", .optimizer = adam},
      {.name = "AdamW, step by step", .optimizer = adam, .captured = false},
      {.name = "clipped SGD", .optimizer = sgd, .clip = true},
      {.name = "accumulated, clipped, checkpointed Adam",
       .optimizer = made<Adam>(AdamOptions{.lr = 1e-2}),
       .micro_batches = 2,
       .clip = true,
       .checkpoint = true,
       .accumulate = true},
      {.name = "tied AdamW", .optimizer = adam, .micro_batches = 8, .tied = true},
  };
}

Tensor tokens_of(int step) {
  return ((Tensor::arange(kBatch * kLength) * (7 + step % 3)) % 19).reshape({kBatch, kLength});
}

// A model and what trains it, on one device or in stages.
struct Trainer {
  Trainer(const Training& t, const std::optional<Mesh>& mesh_)
      : training(t), mesh(mesh_), model(with_checkpoints(t.checkpoint)) {
    std::vector<Tensor> params = nn::parameters(model);
    if (t.tied)
      std::erase_if(params, [&](const Tensor& p) { return p.state() == model.head.state(); });
    if (mesh) {
      pipe.emplace(*mesh, "pipe",
                   test::stages_of(model, mesh->axes()[size_t(mesh->axis("pipe"))].size, t.tied),
                   nn::PipelineOptions{.micro_batches = t.micro_batches});
      nn::StateDict state = nn::state_dict(model);
      if (t.tied) state.erase("head");
      if (has_axis(*mesh, "model")) nn::tensor_parallel(state, *mesh, "model", rules(t.tied));
      if (has_axis(*mesh, "fsdp")) nn::fully_shard(state, *mesh, "fsdp");
    }
    optim = t.optimizer(params);
    sum.emplace(params);
  }

  static LlamaConfig with_checkpoints(bool checkpoint) {
    LlamaConfig config = kSmall;
    config.checkpoint = checkpoint;
    Tensor::manual_seed(3);
    return config;
  }
  static std::vector<nn::TensorParallelRule> rules(bool tied) {
    std::vector<nn::TensorParallelRule> list = kLlama;
    if (tied) list.back().names = "embed";
    return list;
  }

  Tensor placed(const Tensor& x) const {
    if (!mesh) return x;
    std::vector<AxisPlacement> rows;
    for (const char* axis : {"data", "fsdp"})
      if (has_axis(*mesh, axis)) rows.push_back({axis, Shard(0)});
    return x.shard(*mesh, rows);
  }
  Tensor backward(const Tensor& tokens) {
    TrainingMode on;
    optim->zero_grad();
    const Tensor x = placed(tokens), next = x.roll(1, 1);
    if (pipe) return pipe->backward(x, next, test::cross_entropy);
    Tensor h = model.embed.embedding(x);
    for (const auto& block : model.h) h = block(h);
    const Tensor logits = model.norm(h).matmul((training.tied ? model.embed : model.head).T());
    return test::cross_entropy(logits, next).backward();
  }
  Tensor body(const Tensor& tokens) {
    TrainingMode on;
    Tensor loss;
    if (training.accumulate) {
      loss = backward(tokens[Slice(0, 8)]);
      sum->add();
      loss = loss + backward(tokens[Slice(8, 16)]);
      sum->add();
      sum->take(0.5);
    } else {
      loss = backward(tokens);
    }
    if (training.clip) nn::clip_grad_norm(optim->params(), 0.5);
    optim->step();
    return loss;
  }

  Training training;
  std::optional<Mesh> mesh;
  Llama model;
  std::optional<nn::Pipeline> pipe;
  std::unique_ptr<nn::optim::Optimizer> optim;
  std::optional<nn::GradientSum> sum;
};

struct Doubles {
  Doubles() { set_default_float(DType::F64); }
  ~Doubles() { set_default_float(DType::F32); }
};

std::vector<double> losses(const Training& t, const std::optional<Mesh>& mesh, int steps = 20) {
  const Doubles doubles;
  Trainer trainer(t, mesh);
  Jit step = [&](Tensor tokens) { return trainer.body(tokens); };
  std::vector<double> list;
  for (int i = 0; i < steps; ++i) {
    const Tensor tokens = tokens_of(i).realize();
    list.push_back((t.captured ? step(tokens) : trainer.body(tokens)).item<double>());
  }
  return list;
}

void expect_equal(const std::vector<double>& a, const std::vector<double>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-9 * std::abs(b[i])) << what << ", step " << i;
}

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

class Pipeline : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    if (!several_ranks()) Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  }
  void TearDown() override { Runtime::shutdown(); }
};

std::vector<std::vector<MeshAxis>> meshes() {
  return {{{"pipe", 4}},
          {{"data", 2}, {"pipe", 2}},
          {{"pipe", 2}, {"model", 2}},
          {{"pipe", 2}, {"fsdp", 2}}};
}

TEST_F(Pipeline, LossesAreThoseOfOneDevice) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Training& t : trainings()) {
    const std::vector<double> one = losses(t, {});
    EXPECT_LT(one.back(), one.front()) << t.name;
    expect_equal(losses(t, Mesh({{"pipe", 2}})), one, t.name + ", two stages");
    for (const auto& axes : meshes())
      expect_equal(losses(t, Mesh(axes)), one, t.name + " on " + Mesh(axes).to_string());
  }
}

TEST_F(Pipeline, LossesOverRanksAreThoseOfOneDevice) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  for (const Training& t : trainings()) {
    const std::vector<double> one = losses(t, {});
    if (world().devices.size() == 2) expect_equal(losses(t, Mesh({{"pipe", 2}})), one, t.name);
    if (world().devices.size() != 4) continue;
    for (const auto& axes : meshes())
      expect_equal(losses(t, Mesh(axes)), one, t.name + " on " + Mesh(axes).to_string());
  }
}

}  // namespace
}  // namespace tinyshard
