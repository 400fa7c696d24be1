// The schedule of a captured step, for tests and tools of the engine. It can be read after the
// runtime has ended, too.
#pragma once
#include "core/exec/captured_step.h"
#include "core/schedule/schedule.h"

namespace tinyshard {

const Schedule& schedule_of(const CapturedStep& step);  // UserError before the first call

}  // namespace tinyshard
