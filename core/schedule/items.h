// The items of a schedule, from its tasks in their final order.
#pragma once

namespace tinyshard {

struct ScheduleState;

// Makes an item of each task, numbers the collectives, and says which of them an item waits for.
void make_items(ScheduleState& state);

}  // namespace tinyshard
