// A schedule keeps its numbers and nothing else: it is a function of the step, so that training
// that resumes at step n has the rate of step n. Only the Scheduler counts, in a tensor that is
// saved with the others, and step() outside of captured steps, as a trace would count once.
#include "core/nn/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/capture.h"

namespace tinyshard::nn {
namespace {

void need_rate(const char* what, double value) {
  if (!(value >= 0) || std::isinf(value))
    fail(fmt::format("{} is {}; a rate is a finite number that is not negative", what, value));
}
void need_steps(int64_t steps) {
  if (steps < 1) fail(fmt::format("{} steps; a schedule has at least one", steps));
}

// Returns how much of `steps` is done, 0 to 1.
double done(int64_t step, int64_t steps) {
  return std::clamp(double(step) / double(steps), 0.0, 1.0);
}
double line(double from, double to, double part) { return from + (to - from) * part; }
double half_cosine(double from, double to, double part) {
  return to + 0.5 * (from - to) * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

Schedule constant_lr(double rate) {
  Call call("constant_lr");
  need_rate("rate", rate);
  return [rate](int64_t) { return rate; };
}

Schedule linear_lr(const LinearOptions& o) {
  Call call("linear_lr");
  need_rate("from", o.from);
  need_rate("to", o.to);
  need_steps(o.steps);
  return [o](int64_t step) { return line(o.from, o.to, done(step, o.steps)); };
}

Schedule polynomial_lr(const PolynomialOptions& o) {
  Call call("polynomial_lr");
  need_rate("from", o.from);
  need_rate("to", o.to);
  need_steps(o.steps);
  if (!(o.power > 0)) fail(fmt::format("power is {}; it must be above 0", o.power));
  return [o](int64_t step) {
    return o.to + (o.from - o.to) * std::pow(1 - done(step, o.steps), o.power);
  };
}

Schedule cosine_decay_lr(const CosineDecayOptions& o) {
  Call call("cosine_decay_lr");
  need_rate("from", o.from);
  need_rate("to", o.to);
  need_steps(o.steps);
  if (o.cycles < 1) fail(fmt::format("{} cycles; there is at least one", o.cycles));
  return [o](int64_t step) {
    const int64_t cycle = std::clamp<int64_t>(step / o.steps, 0, o.cycles - 1);
    return half_cosine(o.from, o.to, done(step - cycle * o.steps, o.steps));
  };
}

Schedule step_decay_lr(const StepDecayOptions& o) {
  Call call("step_decay_lr");
  need_rate("rate", o.rate);
  need_rate("factor", o.factor);
  if (o.at.empty()) need_steps(o.every);
  if (!std::ranges::is_sorted(o.at)) fail("the steps of `at` are not in order");
  return [o](int64_t step) {
    const int64_t falls = o.at.empty() ? std::max<int64_t>(step, 0) / o.every
                                       : std::ranges::upper_bound(o.at, step) - o.at.begin();
    return o.rate * std::pow(o.factor, double(falls));
  };
}

Schedule exponential_lr(double rate, double factor) {
  Call call("exponential_lr");
  need_rate("rate", rate);
  need_rate("factor", factor);
  return [=](int64_t step) { return rate * std::pow(factor, double(step)); };
}

Schedule inverse_sqrt_lr(double rate, int64_t steps) {
  Call call("inverse_sqrt_lr");
  need_rate("rate", rate);
  need_steps(steps);
  return
      [=](int64_t step) { return rate * std::sqrt(double(steps) / double(std::max(step, steps))); };
}

Schedule one_cycle_lr(const OneCycleOptions& o) {
  Call call("one_cycle_lr");
  need_rate("peak", o.peak);
  need_steps(o.steps);
  if (!(o.rising >= 0 && o.rising <= 1) || !(o.begin > 0) || !(o.end > 0))
    fail(fmt::format("rising {} is a part of the steps, begin {} and end {} are above 0", o.rising,
                     o.begin, o.end));
  return [o](int64_t step) {
    const double first = o.peak / o.begin, last = first / o.end;
    const auto way = o.linear ? line : half_cosine;
    // The last step has the last rate, and the peak is at a place between steps.
    const double top = o.rising * double(o.steps) - 1, end = double(o.steps) - 1;
    const double at = std::clamp(double(step), 0.0, std::max(end, 0.0));
    if (at <= top) return way(first, o.peak, top > 0 ? at / top : 1.0);
    return way(o.peak, last, end > top ? (at - top) / (end - top) : 1.0);
  };
}

Schedule with_warmup(Schedule schedule, const WarmupOptions& o) {
  Call call("with_warmup");
  if (!schedule) fail("there is no schedule to begin");
  if (o.steps < 0) fail(fmt::format("{} steps", o.steps));
  if (!(o.from >= 0 && o.from <= 1)) fail(fmt::format("from {} is no part of a rate", o.from));
  if (o.kind == Warmup::Exponential && !(o.from > 0))
    fail("an exponential warm-up cannot begin at 0: give it a `from`");
  return [o, schedule = std::move(schedule)](int64_t step) {
    if (step >= o.steps) return schedule(step - o.steps);
    const double peak = schedule(0), part = double(step + 1) / double(o.steps);
    switch (o.kind) {
      case Warmup::Constant:
        return peak * o.from;
      case Warmup::Cosine:
        return half_cosine(peak * o.from, peak, part);
      case Warmup::Exponential:
        return peak * std::pow(o.from, 1 - part);
      case Warmup::Linear:
        break;
    }
    return line(peak * o.from, peak, part);
  };
}

double cosine_lr(int64_t step, const CosineOptions& o) {
  const int64_t steps = std::max<int64_t>(o.steps - o.warmup, 1);
  return with_warmup(cosine_decay_lr({.from = o.peak, .to = o.floor, .steps = steps}),
                     {.steps = o.warmup})(step);
}

Schedule sequential_lr(std::vector<Schedule> schedules, std::vector<int64_t> at) {
  Call call("sequential_lr");
  if (schedules.empty() || at.size() + 1 != schedules.size())
    fail(fmt::format("{} schedules, and {} steps at which the next begins", schedules.size(),
                     at.size()));
  if (!std::ranges::is_sorted(at)) fail("the steps of `at` are not in order");
  if (!std::ranges::all_of(schedules, [](const Schedule& s) { return bool(s); }))
    fail("one of the schedules is empty");
  return [schedules = std::move(schedules), at = std::move(at)](int64_t step) {
    const auto which = static_cast<size_t>(std::ranges::upper_bound(at, step) - at.begin());
    return schedules[which](which == 0 ? step : step - at[which - 1]);
  };
}

Scheduler::Scheduler(const optim::Optimizer& optimizer, Schedule schedule)
    : steps(Tensor::full({}, int64_t{0}, DType::I64).clone()),
      optimizer_(&optimizer),
      schedule_(std::move(schedule)) {
  Call call("Scheduler");
  if (!schedule_) fail("there is no schedule");
  optimizer_->set_lr(rate());
}

double Scheduler::rate() const { return schedule_(steps.item<int64_t>()); }

void Scheduler::resume() { optimizer_->set_lr(rate()); }

void Scheduler::step() {
  Call call("Scheduler");
  if (current_capture())
    fail("step() of a schedule in a captured step counts its first call alone; call it behind");
  steps.assign(steps + int64_t{1}).realize();
  resume();
}

}  // namespace tinyshard::nn
