// Where the temporary buffers of a schedule lie in the arena that each device holds for it.
#pragma once
#include "core/schedule/schedule.h"

namespace tinyshard {

// Gives every buffer that lives only inside the schedule an offset, so that buffers whose lives
// overlap do not; sets arena_bytes. The order of the items must be final.
void plan_memory(Schedule& schedule);

}  // namespace tinyshard
