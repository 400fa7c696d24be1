// Rates by step against their formulas, and the scheduler of an optimizer.
#include "core/nn/schedules.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/nn/nn.h"
#include "tests/message_of.h"

namespace tinyshard::schedules_test {
namespace {

void expect_rates(const nn::Schedule& schedule, const std::vector<double>& want, int64_t from = 0) {
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(schedule(from + int64_t(i)), want[i], 1e-12) << from + int64_t(i);
}

TEST(Schedules, AreTheirFormulas) {
  expect_rates(nn::constant_lr(0.5), {0.5, 0.5});
  expect_rates(nn::linear_lr({.from = 1, .to = 0, .steps = 4}), {1, 0.75, 0.5, 0.25, 0, 0});
  expect_rates(nn::polynomial_lr({.from = 1, .to = 0, .power = 2, .steps = 4}),
               {1, 0.5625, 0.25, 0.0625, 0, 0});
  expect_rates(
      nn::cosine_decay_lr({.from = 1, .to = 0.2, .steps = 4}),
      {1, 0.2 + 0.4 * (1 + std::sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - std::sqrt(0.5)), 0.2, 0.2});
  expect_rates(nn::cosine_decay_lr({.from = 1, .to = 0, .steps = 2, .cycles = 2}),
               {1, 0.5, 1, 0.5, 0, 0});
  expect_rates(nn::step_decay_lr({.rate = 1, .factor = 0.5, .every = 2}), {1, 1, 0.5, 0.5, 0.25});
  expect_rates(nn::step_decay_lr({.rate = 1, .factor = 0.5, .at = {1, 3}}),
               {1, 0.5, 0.5, 0.25, 0.25});
  expect_rates(nn::exponential_lr(1, 0.5), {1, 0.5, 0.25});
  expect_rates(nn::inverse_sqrt_lr(1, 4), {1, 1, 1, 1, 1, std::sqrt(0.8)});
}

// The numbers of PyTorch's OneCycleLR(max_lr=1, total_steps=10, pct_start=0.3).
TEST(Schedules, OneCycleRisesAndFalls) {
  expect_rates(nn::one_cycle_lr({.peak = 1, .steps = 10}),
               {0.04, 0.52, 1, 0.9504846320134737, 0.8117456539497631, 0.6112620219362893,
                0.38874197806371076, 0.1882583460502369, 0.04951936798652631, 4e-06, 4e-06});
  expect_rates(nn::one_cycle_lr({.peak = 1, .steps = 5, .rising = 0.6, .linear = true}),
               {0.04, 0.52, 1, 0.500002, 4e-06});
}

TEST(Schedules, BeginWarm) {
  const nn::Schedule line = nn::linear_lr({.from = 1, .to = 0, .steps = 2});
  expect_rates(nn::with_warmup(line, {.steps = 4}), {0.25, 0.5, 0.75, 1, 1, 0.5, 0, 0});
  expect_rates(nn::with_warmup(line, {.steps = 2, .from = 0.5}), {0.75, 1, 1, 0.5});
  expect_rates(nn::with_warmup(line, {.steps = 2, .kind = nn::Warmup::Constant, .from = 0.1}),
               {0.1, 0.1, 1});
  expect_rates(nn::with_warmup(line, {.steps = 2, .kind = nn::Warmup::Cosine}), {0.5, 1, 1});
  expect_rates(nn::with_warmup(line, {.steps = 2, .kind = nn::Warmup::Exponential, .from = 0.01}),
               {0.1, 1, 1});
  expect_rates(nn::with_warmup(line, {}), {1, 0.5, 0});
  expect_rates(nn::sequential_lr({nn::constant_lr(3), line, nn::constant_lr(2)}, {2, 4}),
               {3, 3, 1, 0.5, 2, 2});
}

TEST(Schedules, SetTheRateOfAnOptimizerAndResume) {
  Tensor w = Tensor::ones({2}).is_param_();
  nn::optim::SGD optim({w});
  nn::Scheduler scheduler(optim, nn::linear_lr({.from = 1, .to = 0, .steps = 4}));
  EXPECT_EQ(optim.lr.item<float>(), 1.0f);
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(optim.lr.item<float>(), 0.5f);
  const nn::StateDict saved = nn::state_dict(scheduler);
  nn::optim::SGD other({w});
  nn::Scheduler resumed(other, nn::linear_lr({.from = 1, .to = 0, .steps = 4}));
  nn::load_state_dict(resumed, saved);
  resumed.resume();
  EXPECT_EQ(other.lr.item<float>(), 0.5f);
  resumed.step();
  EXPECT_EQ(resumed.rate(), 0.25);
}

TEST(Schedules, SayWhatIsWrong) {
  const auto message = [](const auto& call) { return test::message_of<UserError>(call); };
  EXPECT_NE(message([] { nn::linear_lr({.from = -1}); }).find("from is -1"), std::string::npos);
  EXPECT_NE(message([] { nn::linear_lr({.steps = 0}); }).find("0 steps"), std::string::npos);
  EXPECT_NE(message([] { nn::constant_lr(std::nan("")); }).find("nan"), std::string::npos);
  EXPECT_NE(message([] { nn::step_decay_lr({.at = {3, 1}}); }).find("not in order"),
            std::string::npos);
  EXPECT_NE(message([] { nn::sequential_lr({nn::constant_lr(1)}, {1}); }).find("1 schedules"),
            std::string::npos);
  EXPECT_NE(message([] {
              nn::with_warmup(nn::constant_lr(1), {.steps = 1, .kind = nn::Warmup::Exponential});
            }).find("cannot begin at 0"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::schedules_test
