// The steps of scheduling as a list. All are there and documented. Leaving one out changes plans
// and no value. A mistake between two steps is found there, and an unknown name is an error.
#include "core/schedule/steps.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <tinyshard/tinyshard.h>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/exec/kernel_steps.h"
#include "core/exec/make_executable.h"
#include "core/exec/schedule_of.h"
#include "core/passes/passes.h"
#include "core/schedule/verify.h"
#include "tests/message_of.h"

namespace tinyshard::steps_test {
namespace {

class StepsTest : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override {
    set("TS_DISABLE_PASSES", "");
    for (const char* variable : {"SPEC", "DEBUG", "TS_SERIAL"}) set(variable, "");
    set_log_sink({});
    Runtime::shutdown();
  }
  static void set(const char* variable, const std::string& value) {
    if (value.empty())
      unsetenv(variable);
    else
      setenv(variable, value.c_str(), 1);
    reload_options();
  }
};

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const ScheduleStep& step : schedule_steps()) names.emplace_back(step.name);
  return names;
}

TEST_F(StepsTest, AllAreInTheTableInTheirOrder) {
  EXPECT_EQ(names(),
            (std::vector<std::string>{"fusion", "storages", "results", "lower", "vertical_fusion",
                                      "sibling_fusion", "unread", "horizontal_fusion", "buckets",
                                      "late_updates", "order", "reuse", "items", "memory"}));
  for (const ScheduleStep& step : schedule_steps()) EXPECT_FALSE(step.purpose.empty()) << step.name;
  std::vector<StepName> known = known_steps();
  std::ranges::sort(known, {}, &StepName::name);
  auto twice = std::ranges::adjacent_find(known, {}, &StepName::name);
  EXPECT_TRUE(twice == known.end()) << twice->name;
}

TEST_F(StepsTest, TheArchitecturesPageListsThem) {
  std::ifstream file(ARCHITECTURE_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  std::string all;
  for (const std::string& name : names()) all += (all.empty() ? "" : ", ") + name;
  EXPECT_NE(page.str().find(all), std::string::npos) << all;
  all.clear();
  for (const KernelStep& step : kernel_steps())
    all += (all.empty() ? "" : ", ") + std::string(step.name);
  EXPECT_NE(page.str().find("steps of kernels: " + all), std::string::npos) << all;
}

// A small transformer block with its gradients, an update and several devices: something for each
// step that runs on a CPU.
std::vector<std::vector<float>> train() {
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU:0", "CPU:1"}});
  Tensor::manual_seed(7);
  Mesh mesh = Mesh::world({{"data", 2}});
  auto weight = [&](const Ints& shape) {
    return (Tensor::randn(shape) * 0.2).shard(mesh).realize().is_param_();
  };
  Tensor w = weight({64, 192}), out = weight({64, 64}), scale = weight({64}), shift = weight({64});
  std::vector<Tensor> params{w, out, scale, shift};
  nn::optim::AdamW optim(params, {.lr = 1e-2});
  Tensor x = Tensor::randn({8, 32, 64}).realize();
  std::vector<std::vector<float>> values;
  for (int step = 0; step < 2; ++step) {
    TrainingMode on;
    optim.zero_grad();
    Tensor h = x.shard(mesh, {{"data", Shard(0)}}).layernorm() * scale + shift;
    std::vector<Tensor> part = h.matmul(w).chunk(3, -1);
    Tensor y = part[0].scaled_dot_product_attention(part[1], part[2], {}, {.is_causal = true});
    Tensor loss = (x.shard(mesh, {{"data", Shard(0)}}) + y.matmul(out)).softmax().square().sum();
    loss.backward();
    optim.step();
    values.push_back(loss.to_vector<float>());
  }
  for (const Tensor& p : params) values.push_back(p.to_vector<float>());
  return values;
}

TEST_F(StepsTest, EachMayBeLeftOutAndNoValueChanges) {
  set("SPEC", "2");
  const auto expected = train();
  for (const ScheduleStep& step : schedule_steps()) {
    // Only an nn::Elastic over several ranks asks for late updates, whose tests see them.
    if (step.required || step.name == "late_updates") continue;
    set("TS_DISABLE_PASSES", std::string(step.name));
    const auto found = train();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(found[i].size(), expected[i].size());
      for (size_t k = 0; k < expected[i].size(); ++k)
        ASSERT_NEAR(found[i][k], expected[i][k], 1e-4) << "without " << step.name;
    }
  }
  set("TS_DISABLE_PASSES",
      "results,vertical_fusion,sibling_fusion,unread,horizontal_fusion,buckets,order,reuse");
  const auto found = train();
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t k = 0; k < expected[i].size(); ++k)
      ASSERT_NEAR(found[i][k], expected[i][k], 1e-4) << "with all of them left out";
  }
}

// Plans a step of training on a GPU, in which each of them has something to do.
std::vector<std::string> plan_of_training() {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL_H200"}, .devices_per_rank = 2});
  set_default_float(DType::F32);
  Mesh mesh = Mesh::world({{"data", 2}});
  auto weight = [&](const Ints& shape) {
    return Tensor::zeros(shape).shard(mesh).clone().is_param_();
  };
  std::vector<Tensor> params{weight({256, 768}), weight({256, 256}), weight({256}), weight({256}),
                             weight({256, 256})};
  nn::optim::AdamW optim(params, {.lr = 1e-2});
  Tensor x = Tensor::zeros({8, 128, 256}).clone().realize();
  Jit step = [&](Tensor batch) {
    TrainingMode on;
    optim.zero_grad();
    Tensor in = batch.shard(mesh, {{"data", Shard(0)}});
    Tensor h = (in.layernorm() * params[2] + params[3]).cast(DType::BF16);
    std::vector<Tensor> part;
    for (const Tensor& t : h.matmul(params[0].cast(DType::BF16)).chunk(3, -1))
      part.push_back(t.unflatten(-1, {4, -1}).transpose(1, 2));
    Tensor y = part[0].scaled_dot_product_attention(part[1], part[2], {}, {.is_causal = true});
    y = y.transpose(1, 2).flatten(2).matmul(params[1].cast(DType::BF16)).cast(DType::F32);
    y = y.matmul(params[4]).tanh().matmul(params[4]);  // in the memory of the first product
    Tensor loss = (in + y).softmax().square().sum().backward();
    optim.step();
    return loss;
  };
  step(x);
  const Schedule& schedule = schedule_of(step.captured_step());
  std::vector<std::string> lines = schedule.details();
  for (const VirtualBuffer& b : schedule.buffers)
    lines.push_back(std::to_string(b.previous) + " at " + std::to_string(b.arena_offset));
  return lines;
}

TEST_F(StepsTest, EachChangesThePlanOfATraining) {
  set("SPEC", "2");
  set("TS_SERIAL", "1");  // memory is used again as if nothing ran side by side
  const auto whole = plan_of_training();
  EXPECT_TRUE(plan_of_training() == whole);
  for (const ScheduleStep& step : schedule_steps()) {
    // Only an nn::Elastic over several ranks asks for late updates, whose tests see them.
    if (step.required || step.name == "late_updates") continue;
    set("TS_DISABLE_PASSES", std::string(step.name));
    EXPECT_TRUE(plan_of_training() != whole) << step.name;
  }
}

TEST_F(StepsTest, ADifferentNameIsToldWithTheNearest) {
  auto compute = [] { (Tensor::randn({4}) + 1).realize(); };
  set("TS_DISABLE_PASSES", "tidy,vertcal_fusion");
  const std::string text = test::message_of<UserError>(compute);
  EXPECT_TRUE(text.starts_with(
      "TS_DISABLE_PASSES: there is no pass or step \"vertcal_fusion\"; did you mean "
      "vertical_fusion? These can be left out: tidy, "))
      << text;
  set("TS_DISABLE_PASSES", "tidi");
  EXPECT_NE(test::message_of<UserError>(compute).find("did you mean tidy?"), std::string::npos);
  for (const char* required : {"lower", "memory", "shard"}) {
    set("TS_DISABLE_PASSES", required);
    EXPECT_NE(test::message_of<UserError>(compute).find("cannot be left out"), std::string::npos)
        << required;
  }
}

TEST_F(StepsTest, EachIsTimedAndPrinted) {
  std::string log;
  set_log_sink([&](std::string_view line) { log += std::string(line) + "\n"; });
  set("DEBUG", "3");
  (Tensor::randn({64, 64}).softmax() + 1).realize();
  for (const std::string& name : names())
    EXPECT_NE(log.find("step " + name + " "), std::string::npos) << name;
  EXPECT_NE(log.find("  kernel over 64 64 reads "), std::string::npos) << log;
  for (const KernelStep& step : kernel_steps())
    EXPECT_NE(log.find("step " + std::string(step.name) + " "), std::string::npos) << step.name;
}

// --- what SPEC=2 finds between two steps ---------------------------------------------------------

class Broken : public StepsTest {
 protected:
  // A chain of three kernels, lowered and not fused.
  void SetUp() override {
    StepsTest::SetUp();
    Tensor x = Tensor::randn({64}).realize();
    Tensor a = (x * 2).contiguous(), b = (a + 1).contiguous(), c = b.exp();
    const UOp& root = c.uop();
    PassContext context;
    context.graph.become({root});
    context.library_supports = [](const LibraryCall&) { return false; };
    run_passes(context);
    shardings_ = context.shardings;
    state_.emplace(context.graph, shardings_, options_);
    for (const ScheduleStep& step : schedule_steps()) {
      step.run(*state_);
      if (step.name == "lower") break;
    }
    ASSERT_EQ(state_->tasks.size(), 3u);
  }
  void TearDown() override {
    state_.reset();
    StepsTest::TearDown();
  }
  std::string found(std::span<const int> order = {}) {
    return test::message_of<InternalError>([&] { verify_tasks(*state_, "here", order); });
  }

  std::vector<Sharding> shardings_;
  ScheduleOptions options_;
  std::optional<ScheduleState> state_;
};

TEST_F(Broken, ARightStateIsAccepted) {
  EXPECT_EQ(found(), "");
  EXPECT_EQ(found(state_->drafted), "");
}

TEST_F(Broken, AWriterThatIsMissing) {
  Task& first = state_->tasks[0];
  first.gone = true;
  first.draft.reset();
  first.reads.clear();
  first.writes.clear();
  EXPECT_NE(found().find("schedule verifier, after here: nothing writes buffer"), std::string::npos)
      << found();
}

TEST_F(Broken, TwoWriters) {
  const Task& task = state_->tasks[1];
  Task again;
  again.draft = task.draft;
  again.reads = task.reads;
  again.writes = task.writes;
  again.position = task.position;
  state_->tasks.push_back(std::move(again));
  EXPECT_NE(found().find(" write buffer "), std::string::npos) << found();
}

TEST_F(Broken, AnAccessThatTheTaskDoesNotName) {
  state_->tasks[1].reads.clear();
  EXPECT_NE(found().find("loads and stores other buffers"), std::string::npos) << found();
}

TEST_F(Broken, ADependencyThatWasLost) {
  const std::vector<int> reads = std::exchange(state_->tasks[2].reads, {});
  state_->dependencies.emplace(state_->tasks, state_->schedule.buffers);
  state_->tasks[2].reads = reads;
  EXPECT_NE(found().find("does not wait for"), std::string::npos) << found();
}

TEST_F(Broken, AnOrderThatNobodyMayRunIn) {
  std::vector<int> order = state_->drafted;
  std::swap(order[0], order[1]);
  EXPECT_NE(found(order).find("runs before"), std::string::npos) << found(order);
  order[1] = order[0];
  EXPECT_NE(found(order).find("not once in the order"), std::string::npos) << found(order);
}

}  // namespace
}  // namespace tinyshard::steps_test
