// PTX to a loaded module. The machine code that the driver's compiler makes is kept, for other GPUs
// of its kind in this process and on disk, so a warm start compiles nothing.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "devices/cuda/driver.h"

namespace tinyshard::cuda {

// By any thread, with the device's context current: takes some 100 ms a kernel where it is not
// kept. `capability` of the device: one PTX is other machine code on other GPUs. Throws as
// `load_ptx`.
std::shared_ptr<const std::string> machine_code(const char* ptx, std::string_view capability,
                                                std::string_view device);

// With the device's context current. `ptx` ends with a NUL. Throws DeviceError with the compiler's
// log when the PTX is refused.
gpu::Module load_ptx(const char* ptx, std::string_view capability, std::string_view device);

// How many parameters the entry of a PTX text declares. -1 when it has no such entry.
int count_parameters(std::string_view ptx, std::string_view entry);

}  // namespace tinyshard::cuda
