// For which target kernels are generated, for a GPU of an instruction set, and the figures that plans
// are made by.
#pragma once
#include <string_view>

#include "core/runtime/profile.h"
#include "core/runtime/target.h"

namespace tinyshard::hip {

// `architecture`: as the runtime names it, "gfx942". What is newer than the code generator and of a
// family whose members run the same code is taken as that family. DeviceError for others.
Target gpu_target(std::string_view architecture);

const DeviceProfile& gpu_profile();

}  // namespace tinyshard::hip
