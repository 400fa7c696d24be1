// Stages that are lists of named steps: the passes over graphs (core/passes/passes.h), the steps
// of scheduling (core/schedule/steps.h), the steps of kernels (core/exec/kernel_steps.h). Each list
// is one table. DEBUG, SPEC and TS_DISABLE_PASSES mean the same for all of them:
//
//   DEBUG=3  its name and processor time, a count of the state after it, and the state itself
//   SPEC=2   verified
//   TS_DISABLE_PASSES=a,b   left out, where a step is not required
//   NOOPT=1  all of these left out, but for the steps of kernels, which save compilations
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/debug_text.h"
#include "core/base/log.h"
#include "core/base/observer.h"
#include "core/base/options.h"

namespace tinyshard {

template <class State>
struct Step {
  std::string_view name;
  std::string_view purpose;
  bool required;
  void (*run)(State&);
};

// The name of a step for TS_DISABLE_PASSES, which cannot leave out a required one.
struct StepName {
  std::string_view name;
  bool required;
};
template <class State>
std::vector<StepName> names_of(std::span<const Step<State>> steps) {
  std::vector<StepName> names;
  for (const Step<State>& step : steps) names.push_back({step.name, step.required});
  return names;
}

// Tells whether TS_DISABLE_PASSES names the step.
bool is_disabled(std::string_view name);
// UserError when TS_DISABLE_PASSES names something that is not among `known`, or a step that is
// required; with the names that it may have.
void check_disabled(std::span<const StepName> known);

// The steps that run, in order, each an event. `kind` is "pass", "step" or "kernel step"; after each, count(state)
// says what there is ("48 nodes"), text(state) prints all of it, verify(state, step) proves what
// holds; ended(state, step) is told of each where a watcher has it. Steps after one that makes done(state) true do not run.
template <class State, class Watcher>
void run_steps(std::string_view kind, std::span<const Step<State>> steps, State& state,
               Watcher&& watcher) {
  const Options& o = options();
  follow_debug_option();
  for (const Step<State>& step : steps) {
    const bool unwanted = (o.no_opt && kind != "kernel step") || is_disabled(step.name);
    if (!step.required && unwanted) continue;
    {
      ObservedScope event([&] {
        return ObservedEvent{.kind = kind == "pass" ? EventKind::Pass : EventKind::ScheduleStep,
                             .name = std::string(step.name)};
      });
      step.run(state);
      event.finish([&] { return watcher.count(state); });
    }
    if constexpr (requires { watcher.ended(state, step); }) watcher.ended(state, step);
    if (o.debug >= 3) log_line(watcher.text(state));
    if (o.spec >= 2) watcher.verify(state, step);
    if (watcher.done(state)) return;
  }
}

}  // namespace tinyshard
