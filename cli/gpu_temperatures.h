// Temperatures of GPUs whose driver tells them in a library. Those of AMD are among the kernel's files
// (host_figures.h).
#pragma once
#include <string>
#include <vector>

#include "cli/host_figures.h"

namespace tinyshard::cli {

// Returns the temperature of each NVIDIA GPU of this host, as the driver numbers them: CUDA_VISIBLE_DEVICES
// has no say. Empty without the driver. The library is that of the first call.
std::vector<Temperature> gpu_temperatures(const std::string& library = "libnvidia-ml.so.1");

}  // namespace tinyshard::cli
