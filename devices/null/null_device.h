// NULL:n. Everything is planned, nothing runs: memory is counted, never taken. A program over a
// thousand devices can be looked at on a laptop.
#pragma once
#include <memory>

#include "core/runtime/device.h"

namespace tinyshard {

std::unique_ptr<Device> make_null_device(int index, const Target& like);

}  // namespace tinyshard
