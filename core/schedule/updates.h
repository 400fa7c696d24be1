// Updates of storages behind all collectives of a schedule, so that a collective which fails finds them
// as they were before the step.
#pragma once
#include "core/schedule/schedule_state.h"

namespace tinyshard {

// Does nothing unless ScheduleOptions::updates_at_once asks for it. Schedule::updates_at_once then says
// whether it could be done: a collective may need what is written.
void update_at_once(ScheduleState& state);

}  // namespace tinyshard
