// From values with memory to tasks: kernel drafts, library calls, collectives and copies.
#pragma once

namespace tinyshard {

struct ScheduleState;

// Makes the tasks and what they wait for. Where storages are written over while their old values
// are still needed, in a circle, the state is stuck and says which values.
void lower_tasks(ScheduleState& state);

}  // namespace tinyshard
