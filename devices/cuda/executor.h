// The executor of devices/gpu, in whose words this folder speaks.
#pragma once
#include "devices/gpu/gpu.h"
#include "devices/gpu/program.h"

namespace tinyshard::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

}  // namespace tinyshard::cuda
