// AMD's GPUs for the executor of devices/gpu.
#pragma once
#include "devices/gpu/vendor.h"

namespace tinyshard::hip {

const gpu::Vendor& vendor();

}  // namespace tinyshard::hip
