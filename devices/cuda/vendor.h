// NVIDIA's GPUs for the executor of devices/gpu.
#pragma once
#include "devices/gpu/vendor.h"

namespace tinyshard::cuda {

const gpu::Vendor& vendor();

}  // namespace tinyshard::cuda
