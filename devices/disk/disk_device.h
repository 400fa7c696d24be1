// DISK:0. Its values are files mapped to memory (core/exec/file_buffer.h): pages come when
// something reads them, so a device that copies its part of a file touches that part only. What is
// computed of such values runs on the CPU and lies in memory.
#pragma once
#include <memory>

#include "core/runtime/device.h"

namespace tinyshard {

// `cpu` runs the programs.
std::unique_ptr<Device> make_disk_device(std::unique_ptr<Device> cpu);

}  // namespace tinyshard
