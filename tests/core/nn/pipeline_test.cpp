// Pipeline parallel training: the losses of one device, alone and with data, tensor and fully sharded
// parallelism, in one process and over ranks.
#include "core/nn/pipeline.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/codegen/codegen.h"
#include "core/exec/executable.h"
#include "tests/core/nn/pipeline_model.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace tinyshard::pipeline_test {
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
  std::vector<std::vector<MeshAxis>> meshes;  // of four devices; two stages on two where empty
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
  const std::vector<MeshAxis> four{{"pipe", 4}}, data{{"data", 2}, {"pipe", 2}},
      model{{"pipe", 2}, {"model", 2}}, fsdp{{"pipe", 2}, {"fsdp", 2}};
  return {
      {.name = "AdamW", .optimizer = adam, .meshes = {four, data, model, fsdp}},
      {.name = "LAMB, step by step",
       .optimizer = made<LAMB>(LambOptions{.lr = 1e-2, .weight_decay = 0.1}),
       .meshes = {},
       .captured = false},
      {.name = "clipped SGD", .optimizer = sgd, .meshes = {data}, .clip = true},
      {.name = "accumulated, clipped, checkpointed Adam",
       .optimizer = made<Adam>(AdamOptions{.lr = 1e-2}),
       .meshes = {fsdp},
       .micro_batches = 2,
       .clip = true,
       .checkpoint = true,
       .accumulate = true},
      {.name = "tied AdamW",
       .optimizer = adam,
       .meshes = {model},
       .micro_batches = 8,
       .tied = true},
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

// Returns the losses of the first steps of a training.
std::vector<double> losses(const Training& t, const std::optional<Mesh>& mesh,
                           int steps = test::kSanitized ? 3 : 20) {
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

void expect_losses_of_one_device(const Training& t) {
  const std::vector<double> one = losses(t, {});
  if (!test::kSanitized) {  // few steps say little
    EXPECT_LT(one.back(), one.front()) << t.name;
  }
  const size_t devices = world().devices.size();
  if (t.meshes.empty() && (devices == 2 || !several_ranks()))
    expect_equal(losses(t, Mesh({{"pipe", 2}})), one, t.name + ", two stages");
  for (const auto& axes : t.meshes) {
    if (devices == 4)
      expect_equal(losses(t, Mesh(axes)), one, t.name + " on " + Mesh(axes).to_string());
    else
      expect_equal(losses(t, Mesh({{"pipe", 2}})), one, t.name + ", two stages");
    if (devices != 4) break;
  }
}

TEST_F(Pipeline, LossesAreThoseOfOneDevice) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Training& t : trainings()) expect_losses_of_one_device(t);
}

TEST_F(Pipeline, LossesOverRanksAreThoseOfOneDevice) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  for (const Training& t : trainings()) expect_losses_of_one_device(t);
}

TEST_F(Pipeline, TheSameConfigurationGivesTheSameBits) {
  const Training t = trainings()[0];
  const Mesh mesh({{"pipe", int64_t(world().devices.size())}});
  EXPECT_EQ(losses(t, mesh, 4), losses(t, mesh, 4));
}

int64_t made_kernels() {
  const CodegenStatistics s = codegen_statistics();
  return s.compiled + s.disk_hits;
}

// From the third call on: all is compiled and bound.
TEST_F(Pipeline, ACapturedStepIsReplayed) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Doubles doubles;
  Trainer trainer(trainings()[0], Mesh({{"data", 2}, {"pipe", 2}}));
  Jit step = [&](Tensor tokens) { return trainer.body(tokens); };
  std::vector<Tensor> tokens;
  for (int i = 0; i < 3; ++i) tokens.push_back(tokens_of(i).realize());
  for (int i = 0; i < 2; ++i) step(tokens[size_t(i)]).item<double>();
  const int64_t compiled = made_kernels(), runs = counters().runs;
  std::vector<int64_t> allocated;
  for (const DeviceInfo& d : Runtime::get().devices()) allocated.push_back(d.bytes);
  step(tokens[2]).item<double>();
  EXPECT_EQ(made_kernels(), compiled);
  EXPECT_EQ(counters().runs, runs + 1);
  for (size_t i = 0; i < allocated.size(); ++i)
    EXPECT_EQ(Runtime::get().devices()[i].bytes, allocated[i]);
}

// Results for all rows, in their order, and the loss without gradients.
TEST_F(Pipeline, EvaluatesABatch) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Doubles doubles;
  Trainer trainer(trainings()[0], Mesh({{"data", 2}, {"pipe", 2}})), alone(trainings()[0], {});
  const Tensor tokens = tokens_of(1).realize(), next = tokens.roll(1, 1);
  Tensor h = alone.model.embed.embedding(tokens);
  for (const auto& block : alone.model.h) h = block(h);
  const Tensor want = alone.model.norm(h).matmul(alone.model.head.T());
  const std::vector<double> a = (*trainer.pipe)(trainer.placed(tokens)).to_vector<double>(),
                            b = want.to_vector<double>();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12);
  const Tensor loss =
      trainer.pipe->loss(trainer.placed(tokens), trainer.placed(next), test::cross_entropy);
  EXPECT_NEAR(loss.item<double>(), test::cross_entropy(want, next).item<double>(), 1e-12);
  for (const Tensor& p : trainer.optim->params()) EXPECT_FALSE(p.grad().defined());
}

// Three steps after a checkpoint of three, or from the one that is in the folder.
std::vector<double> steps_around_a_checkpoint(const std::filesystem::path& folder,
                                              const std::optional<Mesh>& mesh, bool saves) {
  const Doubles doubles;
  Trainer trainer(trainings()[0], mesh);
  nn::StateDict state = nn::state_dict(trainer.model, "model");
  state.merge(nn::state_dict(dynamic_cast<nn::optim::AdamW&>(*trainer.optim), "optimizer"));
  auto step = [&](int i) { return trainer.body(tokens_of(i)).item<double>(); };
  if (saves) {
    for (int i = 0; i < 3; ++i) step(i);
    nn::save_checkpoint(state, folder, 3);
  } else {
    for (const auto& [name, tensor] : nn::state_dict(trainer.model)) tensor.assign(tensor * 0);
    nn::load_checkpoint(state, folder);
  }
  std::vector<double> list;
  for (int i = 3; i < 6; ++i) list.push_back(step(i));
  return list;
}

// On meshes of other stages, and without any.
TEST_F(Pipeline, ACheckpointGoesOn) {
  // Ranks have one parent.
  const std::filesystem::path folder =
      ::testing::TempDir() + "/pipeline-" + std::to_string(several_ranks() ? getppid() : getpid());
  auto on = [&](const std::optional<Mesh>& mesh, bool saves) {
    return steps_around_a_checkpoint(folder, mesh, saves);
  };
  const int64_t devices = int64_t(world().devices.size());
  const std::vector<double> saved = on(Mesh({{"pipe", 2}, {"fsdp", devices / 2}}), true);
  expect_equal(on(Mesh({{"pipe", devices}}), false), saved, "a stage on each device");
  expect_equal(on(Mesh({{"pipe", 2}, {"data", devices / 2}}), false), saved, "two stages");
  expect_equal(on({}, false), saved, "one device");
  if (world().rank == 0) std::filesystem::remove_all(folder);
}

// A stage may draw, and close over values, be it on one device or on several. The losses are those
// of the same layers without stages: two stages draw in the order of the micro-batches.
TEST_F(Pipeline, StagesDrawAndCloseOver) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const TrainingMode on;
  const Doubles doubles;
  const Tensor stored = Tensor(std::vector<double>{1, 0, 1}).realize();
  using T = const Tensor&;
  const std::vector<std::pair<std::string, std::function<Tensor(T)>>> cases{
      {"dropout", [](T x) { return x.dropout(0.5); }},
      {"noise", [](T x) { return x + x.randn_like() + Tensor::rand({2, 3}); }},
      {"host data", [](T x) { return x * Tensor(std::vector<double>{1, 0, 1}); }},
      {"stored", [stored](T x) { return (x * stored).dropout(0.2); }},
      {"order", [](T x) { return x[Tensor::randperm(2)]; }},
      {"attention",
       [](T x) {
         const Tensor h = x.unsqueeze(0);
         return h.scaled_dot_product_attention(h, h, {}, {.dropout_p = 0.3}).squeeze(0);
       }},
  };
  const std::vector<Mesh> meshes{Mesh({{"pipe", 2}}), Mesh({{"pipe", 2}, {"data", 1}}),
                                 Mesh({{"pipe", 2}, {"data", 2}}),
                                 Mesh::of({"CPU:3", "CPU:1"}, "pipe")};
  const Tensor x = Tensor::arange(24).reshape({8, 3}).cast(DType::F64).realize(), y = x / 20 + 1;
  for (const auto& [name, between] : cases) {
    // The loss and the gradients of one step.
    auto step = [&, &between = between](const std::optional<Mesh>& mesh, bool captured) {
      Tensor::manual_seed(3);
      const nn::Linear a(3, 3), b(3, 3);
      auto first = [&](T h) { return between(a(h)); };
      auto last = [&](T h) { return between(b(h)); };
      std::optional<nn::Pipeline> pipe;
      if (mesh)
        pipe.emplace(*mesh, "pipe", std::vector<nn::PipelineStage>{{first, a}, {last, b}},
                     nn::PipelineOptions{.micro_batches = 4});
      auto mean = [](T p, T q) { return (p - q).square().mean(); };
      auto body = [&](T rows) {
        Tensor loss;
        if (pipe) {
          loss = pipe->backward(rows, y, mean);
        } else {
          for (int64_t m : {0, 1, 2, 3}) {
            const Slice part(m, {}, 4);
            const Tensor one = mean(last(first(rows[part])), y[part]) / 4;
            one.backward();
            loss = m == 0 ? one : loss + one;
          }
        }
        std::vector<Tensor> all{loss.reshape({1})};
        for (const Tensor& p : {a.weight, a.bias, b.weight, b.bias}) {
          all.push_back(p.grad().flatten().shard(Mesh::of({"CPU:0"})));
          p.set_grad({});
        }
        all[0] = all[0].shard(Mesh::of({"CPU:0"}));
        return cat(all);
      };
      Jit replayed = [&](Tensor rows) { return body(rows); };
      return (captured ? replayed(x) : body(x)).to_vector<double>();
    };
    const std::vector<double> want = step({}, false);
    for (const Mesh& mesh : meshes) {
      for (bool captured : {false, true})
        expect_equal(step(mesh, captured), want, name + " on " + mesh.to_string());
    }
  }
}

// Parameters that are not trained, of the first stages, of one between, of the last: gradients of
// the others are those without stages.
TEST_F(Pipeline, StagesAreFrozen) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const TrainingMode on;
  const Doubles doubles;
  const Tensor x = Tensor::arange(24).reshape({8, 3}).cast(DType::F64).realize() / 8, y = x.flip(1);
  auto mean = [](const Tensor& p, const Tensor& q) { return (p - q).square().mean(); };
  for (const std::vector<size_t>& frozen :
       {std::vector<size_t>{0}, {0, 1}, {0, 1, 2}, {1}, {3}, {0, 2, 3}}) {
    // Loss and gradients, those of frozen layers as zeros.
    auto step = [&](const std::optional<Mesh>& mesh, bool captured) {
      Tensor::manual_seed(3);
      const std::vector<nn::Linear> layers = nn::layers<nn::Linear>(4, 3, 3);
      for (size_t f : frozen) {
        layers[f].weight.is_param_(false);
        layers[f].bias.is_param_(false);
      }
      std::optional<nn::Pipeline> pipe;
      if (mesh) {
        std::vector<nn::PipelineStage> parts;
        for (const nn::Linear& layer : layers)
          parts.push_back({[&](const Tensor& h) { return layer(h).tanh(); }, layer});
        const int64_t stages = mesh->axes()[0].size;
        pipe.emplace(*mesh, "pipe", nn::join_stages(parts, stages),
                     nn::PipelineOptions{.micro_batches = 4});
      }
      Jit body = [&](Tensor rows) {
        Tensor loss;
        if (pipe) {
          loss = pipe->backward(rows, y, mean);
        } else {
          Tensor h = rows;
          for (const nn::Linear& layer : layers) h = layer(h).tanh();
          loss = mean(h, y).backward();
        }
        std::vector<Tensor> all{loss.reshape({1})};
        for (const auto& [name, p] : nn::state_dict(layers)) {
          all.push_back((p.grad().defined() ? p.grad() : p.zeros_like()).flatten());
          p.set_grad({});
        }
        for (Tensor& t : all) t = t.shard(Mesh::of({"CPU:0"}));
        return cat(all);
      };
      if (captured) body(x.contiguous().realize());
      return body(x.contiguous().realize()).to_vector<double>();
    };
    const std::vector<double> want = step({}, false);
    for (const Mesh& mesh :
         {Mesh({{"pipe", 2}}), Mesh({{"pipe", 4}}), Mesh({{"pipe", 2}, {"data", 2}})}) {
      for (bool captured : {false, true})
        expect_equal(step(mesh, captured), want,
                     fmt::format("{} stages, {} of 4 frozen", mesh.axes()[0].size, frozen.size()));
    }
  }
}

// A weight that two stages name lies on the first one: what the second one assigns, and what it
// leaves outside, is made of its copy of it. And what a stage has assigned but nobody computed yet,
// which its next pass reads, keeps what came from the stage before.
TEST_F(Pipeline, AStageAssignsWhatItMakesOfACopy) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Doubles doubles;
  for (const bool reads_copy : {true, false}) {
    auto train = [&](bool staged) {
      Tensor w = (Tensor::arange(16, DType::F64) * 0.37).sin().reshape({4, 4}).realize();
      w.is_param_();
      nn::BatchNorm norm(4);
      for (const Tensor& t : {norm.weight, norm.bias}) t.is_param_(false);
      std::vector<Tensor> left;
      auto first = [&](const Tensor& x) { return x.matmul(w).tanh(); };
      auto second = [&](const Tensor& x) {
        const Tensor y = norm(reads_copy ? x.matmul(w) : x);
        left.push_back(y.square().mean());
        return y;
      };
      auto loss = [](const Tensor& y, const Tensor& target) {
        return (y.tanh() - target).square().mean();
      };
      std::optional<nn::Pipeline> pipe;
      if (staged)
        pipe.emplace(Mesh({{"pipe", 2}}), "pipe",
                     std::vector<nn::PipelineStage>{{first, w}, {second, w, norm}},
                     nn::PipelineOptions{.micro_batches = 2});
      const Tensor x = (Tensor::arange(32, DType::F64) * 0.71).cos().reshape({8, 4});
      const Tensor target = x.flip({0});
      auto backward = [&] {
        const TrainingMode on;
        if (pipe) {
          pipe->backward(x, target, loss);
          return;
        }
        for (const Slice& rows : {Slice(0, {}, 2), Slice(1, {}, 2)})
          (loss(second(first(x[rows])), target[rows]) * 0.5).backward();
      };
      std::vector<double> values;
      for (int step = 0; step < 2; ++step) {
        backward();
        const Tensor result = pipe ? (*pipe)(x) : second(first(x));
        for (const Tensor& t : {result, norm.running_mean, left[0], left[1], w.grad()})
          std::ranges::copy(t.to_vector<double>(), std::back_inserter(values));
        left.clear();
      }
      return values;
    };
    const std::vector<double> expected = train(false), found = train(true);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << i;
  }
}

TEST_F(Pipeline, MistakesAreTold) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Mesh mesh({{"data", 2}, {"pipe", 2}}), other({{"all", 4}});
  auto expect = [](const std::function<void()>& f, const std::string& part) {
    const std::string text = test::message_of<UserError>(f);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("pipeline_test.cpp"), std::string::npos) << text;
  };
  const nn::Linear a(4, 4), b(4, 4);
  auto make = [](const Mesh& on, const std::string& axis, std::vector<nn::PipelineStage> stages,
                 int64_t micro_batches = 4) {
    return nn::Pipeline(on, axis, std::move(stages), {.micro_batches = micro_batches});
  };
  EXPECT_NE(test::message_of<UserError>([&] { make(mesh, "pip", {a, b}); }).find("\"pipe\""),
            std::string::npos);
  expect([&] { make(mesh, "pipe", {a, b, a}); },
         "3 stages were given for the 2 places along \"pipe\" of mesh(data=2, pipe=2)");
  expect([&] { make(mesh, "pipe", {a, b}, 0); }, "there are 0 micro-batches");
  expect([&] { nn::join_stages({a}, 2); }, "1 parts do not make 2 stages");
  {
    nn::Linear c(4, 4), d(4, 4);
    nn::data_parallel(c, other, "all");
    expect([&] { make(mesh, "pipe", {c, d}); }, "lies on mesh(all=4), not on mesh(data=2)");
  }
  {
    nn::Linear c(4, 4), d(4, 4);
    nn::tensor_parallel(c, mesh, "pipe", {{"weight", Column}});
    expect([&] { make(mesh, "pipe", {c, d}); }, "is divided over \"pipe\", the axis of the stages");
  }
  {
    nn::Linear c(4, 4), d(4, 4);
    nn::fully_shard(c, mesh, "data");
    expect([&] { make(mesh, "pipe", {c, d}); }, "was given to fully_shard");
  }
  auto mean = [](const Tensor& x, const Tensor& y) { return (x - y).square().mean(); };
  const nn::Pipeline pipe = make(mesh, "pipe", {a, b});
  const Tensor rows = Tensor::ones({8, 4});
  expect([&] { pipe.backward(Tensor::ones({6, 4}), rows, mean); },
         "f32[6, 4], do not divide into 4 micro-batches");
  expect([&] { pipe.backward(rows, Tensor::ones({6, 4}), mean); },
         "the targets, f32[6, 4], do not divide into 4 micro-batches");
  expect([&] { pipe.backward(rows.shard(other), rows, mean); }, "lie on mesh(all=4)");
  expect([&] { pipe.backward(rows, rows, [](const Tensor& x, const Tensor&) { return x; }); },
         "not one number");
  // Stages that leave their devices, or do not use what they are given.
  auto run = [&](std::vector<nn::PipelineStage> stages) {
    const nn::Pipeline wrong = make(mesh, "pipe", std::move(stages));
    wrong.backward(rows, rows, mean);
  };
  expect([&] { run({{[&](const Tensor& x) { return a(x).shard(other); }, a}, b}); },
         "stage 0 gives f32[2, 4], which lies on mesh(all=4), not on its own mesh(data=2)");
  expect([&] { run({{[&](const Tensor& x) { return a(x).argmax(-1); }, a}, b}); },
         "stage 0 gives i32[2], which has no gradient");
  expect([&] { run({a, {[&](const Tensor&) { return b.weight[Slice(0, 2)]; }, b}}); },
         "the result of stage 1 does not depend on what the stage is given");
  expect([&] { run({a, {[&](const Tensor&) { return Tensor(); }, b}}); }, "stage 1 gives no value");
  expect([&] { run({{[&](const Tensor& x) { return x * 2; }, a}, b}); },
         "the result of stage 0 depends on none of its parameters");
  // A parameter that no stage names would not be trained, and nobody would know.
  const Tensor scale = Tensor::ones({1}).is_param_();
  expect([&] { run({{[&](const Tensor& x) { return a(x) * scale; }, a}, b}); },
         "stage 0 reads the parameter f32[1], which the stage does not name");
  auto scaled = [&](const Tensor& x, const Tensor& y) { return mean(x * scale, y).sum(); };
  expect([&] { pipe.backward(rows, rows, scaled); },
         "stage 1, or the loss behind it, reads the parameter f32[1]");
  auto held = [&](const Tensor& x, const Tensor& y) { return mean(x * scale.detach(), y); };
  EXPECT_TRUE(pipe.backward(rows, rows, held).defined());
  const nn::Pipeline named =
      make(mesh, "pipe", {a, {[&](const Tensor& x) { return b(x); }, b, scale}});
  named.backward(rows, rows, scaled);
  EXPECT_TRUE(scale.grad().defined());
  for (const Tensor& p : {a.weight, a.bias, b.weight, b.bias}) p.is_param_(false);
  expect([&] { run({a, b}); }, "no stage has a parameter that is trained");
}

}  // namespace
}  // namespace tinyshard::pipeline_test
