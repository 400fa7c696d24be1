// A GPU as plans see it, for NULL devices (devices/null/null_device.h).
#pragma once
#include "devices/null/null_device.h"

namespace tinyshard::cuda {

// An H200 with all its libraries, each of which has an engine for every call that it can express.
PlannedDevice planned_h200();

}  // namespace tinyshard::cuda
