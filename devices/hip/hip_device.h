// AMD's GPUs: opened by index at run time, on a machine that need not have any. Kernels are code objects
// that the code generator makes.
#pragma once
#include <memory>
#include <string>

#include "core/runtime/device.h"

namespace tinyshard {

int count_hip_devices();
std::unique_ptr<Device> make_hip_device(int index);

// Runtime, and each GPU with instruction set, memory and peers, for `tinyshard devices`; or why there is
// none.
std::string describe_hip();

}  // namespace tinyshard
