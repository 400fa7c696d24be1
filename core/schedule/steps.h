// The steps between a graph of local values and its schedule, as one list that reads as the story.
// Each is timed, printed, verified after and can be left out by name where that is safe, as passes
// are (core/base/steps.h).
#pragma once
#include <span>

#include "core/base/steps.h"
#include "core/schedule/schedule_state.h"

namespace tinyshard {

using ScheduleStep = Step<ScheduleState>;
std::span<const ScheduleStep> schedule_steps();

// Runs them in order; ends after `lower` when the state is stuck.
void run_schedule_steps(ScheduleState& state);

}  // namespace tinyshard
