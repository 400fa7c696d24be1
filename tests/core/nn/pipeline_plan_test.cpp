// Plans of pipelines: their transfers and memory, and how long stages wait for each other.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "core/base/stopwatch.h"
#include "core/exec/schedule_of.h"
#include "tests/core/nn/pipeline_model.h"
#include "tests/sanitized.h"

namespace tinyshard::pipeline_plan_test {
namespace {

constexpr int64_t kWidth = 64, kLayers = 4, kRows = 4096;  // rows of a micro-batch on one device

// The layers of a stage, which keep their results for the backward pass.
struct Layers {
  std::vector<nn::Linear> list = nn::layers<nn::Linear>(kLayers, kWidth, kWidth);
  TS_FIELDS(list)
  Tensor operator()(Tensor x) const {
    for (const nn::Linear& layer : list) x = layer(x).tanh();
    return x;
  }
};

struct Plan {
  Schedule schedule;
  PlanSummary summary;
};

class PipelinePlan : public testing::Test {
 protected:
  void TearDown() override { Runtime::shutdown(); }

  // A step of SGD on so many stages, times `data` devices each; the first ones may be frozen.
  static Plan plan(int64_t stages, int64_t micro_batches, int64_t data = 1, int64_t frozen = 0) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = int(stages * data)});
    const Mesh mesh({{"data", data}, {"pipe", stages}});
    const auto models = nn::layers<Layers>(stages);
    const std::vector<nn::PipelineStage> parts(models.begin(), models.end());
    nn::Pipeline pipe(mesh, "pipe", parts, {.micro_batches = micro_batches});
    for (int64_t s = 0; s < frozen; ++s) {
      for (const Tensor& p : nn::parameters(models[size_t(s)])) p.is_param_(false);
    }
    std::vector<Tensor> params = nn::parameters(models);
    Tensor::realize(params);
    nn::optim::SGD optim(params, {.lr = 0.1});
    Tensor::realize(nn::parameters(optim));
    Jit step = [&](Tensor x, Tensor y) {
      TrainingMode on;
      optim.zero_grad();
      Tensor loss = pipe.backward(x, y, [](Tensor a, Tensor b) { return (a - b).square().mean(); });
      optim.step();
      return loss;
    };
    auto rows = [&](int64_t stage) {
      return Tensor::zeros({micro_batches * data * kRows, kWidth})
          .shard(pipe.mesh(stage), {{"data", Shard(0)}})
          .contiguous()
          .realize();
    };
    step(rows(0), rows(stages - 1));
    return {schedule_of(step.captured_step()), summarize(step)};
  }

  static constexpr int64_t kBytes = kRows * kWidth * 4;  // of a layer's result
};

// Each stage keeps what its own micro-batches need, and neither more when there are more of them nor
// what other stages keep.
TEST_F(PipelinePlan, AStageHoldsOneMicroBatchForEachStageFromItOn) {
  const int64_t stages = 4;
  auto arenas = [&](int64_t n) {
    const Plan p = plan(stages, n);
    EXPECT_EQ(p.summary.memory.size(), size_t(stages));
    std::vector<int64_t> bytes;
    for (const DeviceMemory& m : p.summary.memory) bytes.push_back(m.arena_bytes / kBytes);
    EXPECT_EQ(p.summary.arena_bytes / kBytes, *std::ranges::max_element(bytes));
    return bytes;
  };
  const std::vector<int64_t> one = arenas(1), some = arenas(6), more = arenas(12);
  for (size_t s = 0; s < size_t(stages); ++s) {
    const int64_t most = stages - int64_t(s);
    EXPECT_GT(one[s], kLayers);
    EXPECT_LE(some[s], most * one[s] + 1) << "stage " << s;
    EXPECT_GT(some[s], (most - 1) * one[s]) << "stage " << s;
    EXPECT_LE(more[s], some[s] + 1) << "stage " << s << ", of twice as many micro-batches";
  }
}

// If the first stages are not trained, none holds more where there are more micro-batches.
TEST_F(PipelinePlan, FrozenStagesHoldNoMore) {
  const int64_t stages = 4;
  for (int64_t frozen : {1, 2, 3}) {
    const Plan some = plan(stages, 6, 1, frozen), more = plan(stages, 12, 1, frozen);
    for (size_t s = 0; s < size_t(stages); ++s) {
      EXPECT_LE(more.summary.memory[s].arena_bytes, some.summary.memory[s].arena_bytes + kBytes)
          << "stage " << s << ", " << frozen << " frozen";
    }
  }
}

// Activations forward, their gradients backward, and the loss; no gradients to a frozen stage.
TEST_F(PipelinePlan, BetweenStagesTravelActivationsOnly) {
  for (auto [stages, frozen] : {std::pair{2, 0}, {4, 0}, {4, 1}, {4, 2}}) {
    const int64_t n = 8;
    const Plan p = plan(stages, n, 2, frozen);
    int64_t messages = 0, largest = 0, rest = 0;
    for (const CollectiveItem& c : p.summary.collective_items) {
      if (c.axis != "devices") continue;
      if (c.bytes == kBytes)
        ++messages;
      else
        rest += c.bytes;
      largest = std::max(largest, c.bytes);
    }
    EXPECT_EQ(messages, (2 * (stages - 1) - frozen) * n);
    EXPECT_EQ(largest, kBytes);
    EXPECT_LE(rest, 4 * stages) << "the loss, on its way to all devices";
  }
}

// The time until all devices are done, in products, where each works through the items of a plan in
// their order, as ranks do, and exchanges begin when both sides have come to them. Who takes part in
// an exchange waits for it where the plan does.
int64_t time_of(const Schedule& schedule) {
  std::map<std::string, int64_t> now;  // by device
  std::vector<int64_t> done(schedule.items.size());
  auto participants = [&](const Item& item) {
    std::vector<std::string> names;
    for (const DeviceRef& d : item.mesh.devices()) names.push_back(d.to_string());
    return names;
  };
  for (size_t i = 0; i < schedule.items.size(); ++i) {
    const Item& item = schedule.items[i];
    for (int w : item.waits) {
      for (const std::string& d : participants(schedule.items[size_t(w)]))
        now[d] = std::max(now[d], done[size_t(w)]);
    }
    for (const std::string& d : participants(item)) {
      if (item.kind == Item::Kind::Library) ++now[d];
      done[i] = std::max(done[i], now[d]);
    }
    if (item.kind == Item::Kind::Copy) {
      for (const DeviceRef& d : schedule.buffers[size_t(item.buffers[0])].mesh.devices())
        done[i] = std::max(done[i], now[d.to_string()]);
      for (const std::string& d : participants(item)) now[d] = done[i];
    }
  }
  int64_t last = 0;
  for (const auto& [device, time] : now) last = std::max(last, time);
  return last;
}

// A forward pass is a product for each layer, a backward pass two. No schedule of stages that work
// on one micro-batch at a time is shorter.
TEST_F(PipelinePlan, StagesWorkAtTheSameTime) {
  for (int64_t stages : {2, 4}) {
    for (int64_t n : {1, 4, 8}) {
      const int64_t time = time_of(plan(stages, n, 2).schedule);
      EXPECT_LE(time, (n + stages - 1) * 3 * kLayers) << stages << " stages, " << n;
      EXPECT_GE(time, n * (3 * kLayers - 1)) << stages << " stages, " << n;
    }
  }
}

// To ask where a value lies is to look at all that it is made of: not for each parameter of a step.
TEST_F(PipelinePlan, PlanningTakesNoTimeForEachParameter) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = 4});
  const Mesh mesh({{"pipe", 2}, {"fsdp", 2}});
  const test::Llama model({.layers = 24, .width = 64, .hidden = 128});
  nn::Pipeline pipe(mesh, "pipe", test::stages_of(model, 2), {.micro_batches = 4});
  nn::fully_shard(model, mesh, "fsdp");
  const std::vector<Tensor> params = nn::parameters(model);
  Tensor::realize(params);
  nn::optim::AdamW optim(params, {});
  Tensor::realize(nn::parameters(optim));
  const Tensor tokens =
      Tensor::zeros({8, 16}, DType::I32).shard(mesh, {{"fsdp", Shard(0)}}).contiguous().realize();
  Jit step = [&](Tensor x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = pipe.backward(x, x, test::cross_entropy);
    nn::clip_grad_norm(params, 1.0);
    optim.step();
    return loss;
  };
  ProcessorStopwatch watch;
  step(tokens);
  EXPECT_LT(watch.ms() / 1000, test::kSanitized ? 15 : 3);
}

}  // namespace
}  // namespace tinyshard::pipeline_plan_test
