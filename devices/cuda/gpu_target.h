// For which target kernels are generated, for a GPU of a compute capability, and the figures that
// plans are made by.
#pragma once
#include "core/runtime/profile.h"
#include "core/runtime/target.h"

namespace tinyshard::cuda {

// The newest architecture that our code generator knows and the GPU runs; what is newer still runs
// as that. `driver`: its version as the driver tells it, 12030 for 12.3. DeviceError for a GPU that
// is older than all of them.
Target gpu_target(int major, int minor, int driver);

// It runs instructions that Hopper alone has.
bool is_hopper(const Target& target);
// Blocks form clusters that share their memory: Hopper and newer.
bool has_clusters(const Target& target);

const DeviceProfile& gpu_profile();

}  // namespace tinyshard::cuda
