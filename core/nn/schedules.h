// Learning rates by step. A schedule is a function of the step's number; with_warmup puts a beginning
// before any of them, and Scheduler counts steps and sets the rate of an optimizer:
//
//   auto rate = nn::with_warmup(nn::linear_lr({.from = 3e-4, .to = 0, .steps = 10000}), {.steps = 500});
//   nn::Scheduler scheduler(optim, rate);
//   for (...) { step(batch); scheduler.step(); }
//
// Steps behind the last one keep the last rate. UserError for numbers that make no schedule.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/nn/optim.h"

namespace tinyshard::nn {

using Schedule = std::function<double(int64_t step)>;

Schedule constant_lr(double rate);

struct LinearOptions {
  double from = 1e-3, to = 0;
  int64_t steps = 1;  // from the first rate to the last
};
Schedule linear_lr(const LinearOptions& options);

struct PolynomialOptions {
  double from = 1e-3, to = 0, power = 2;
  int64_t steps = 1;
};
// to + (from - to) * (1 - step / steps)^power.
Schedule polynomial_lr(const PolynomialOptions& options);

struct CosineDecayOptions {
  double from = 1e-3, to = 0;
  int64_t steps = 1;
  int64_t cycles = 1;  // restarts at `from`; each cycle takes `steps`
};
Schedule cosine_decay_lr(const CosineDecayOptions& options);

struct StepDecayOptions {
  double rate = 1e-3, factor = 0.1;
  int64_t every = 1;             // multiplied by the factor so often
  std::vector<int64_t> at = {};  // or at these steps
};
Schedule step_decay_lr(const StepDecayOptions& options);

// rate * factor^step.
Schedule exponential_lr(double rate, double factor);

// rate * sqrt(steps / step) behind `steps`, the rate before.
Schedule inverse_sqrt_lr(double rate, int64_t steps);

struct OneCycleOptions {
  double peak = 1e-3;
  int64_t steps = 1;
  double rising = 0.3;  // the part of the steps that rises
  double begin = 25;    // the first rate is peak / begin
  double end = 1e4;     // the last is peak / begin / end
  bool linear = false;  // straight lines rather than half cosines
};
Schedule one_cycle_lr(const OneCycleOptions& options);

enum class Warmup { Linear, Constant, Cosine, Exponential };
struct WarmupOptions {
  int64_t steps = 0;
  Warmup kind = Warmup::Linear;
  double from = 0;  // the part of the schedule's first rate that it begins with
};
// The rates of `schedule` begin when the warm-up ends.
Schedule with_warmup(Schedule schedule, const WarmupOptions& options);

// Several schedules one after the other, each of which begins at step 0 of its own; `at` says when the
// next one begins.
Schedule sequential_lr(std::vector<Schedule> schedules, std::vector<int64_t> at);

// Counts steps and sets an optimizer's rate, the first one at once. Its count is a field, so that a
// checkpoint of it resumes where it was. Borrows the optimizer.
class Scheduler {
 public:
  Scheduler(const optim::Optimizer& optimizer, Schedule schedule);
  void step();  // the next step's rate; not in a captured step
  double rate() const;
  // Takes up a count that was loaded, which sets the rate.
  void resume();

  Tensor steps;  // i64[]
  TS_FIELDS(steps)

 private:
  const optim::Optimizer* optimizer_;
  Schedule schedule_;
};

}  // namespace tinyshard::nn
