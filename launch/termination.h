// Says why a wait gives up: see core/base/termination.h.
#pragma once
#include "core/base/termination.h"

namespace tinyshard {

inline constexpr const char* kTerminated = "the launcher is ending the job (SIGTERM)";

}  // namespace tinyshard
