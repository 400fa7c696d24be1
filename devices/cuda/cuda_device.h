// CUDA:n. One primary context, and in it a stream of launches, one for what the host reads, and one
// for collectives. Kernels come as PTX, products go to cuBLASLt.
#pragma once
#include <memory>
#include <string>

#include "core/runtime/device.h"

namespace tinyshard {

int count_cuda_devices();
std::unique_ptr<Device> make_cuda_device(int index);

// Driver, and each GPU with capability, memory and peers, for `tinyshard devices`; or why there is
// none.
std::string describe_cuda();

}  // namespace tinyshard
