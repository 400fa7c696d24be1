// CPU:n. Each number is a memory of its own; all of them share the process's threads, so programs
// over several devices run, and are tested, on any machine.
#pragma once
#include <memory>

#include "core/runtime/device.h"

namespace tinyshard {

// `local_ranks` processes share this host's cores.
std::unique_ptr<Device> make_cpu_device(int index, int local_ranks);

// Model name, cores and threads, and what was found of oneDNN, for `tinyshard devices`.
std::string describe_cpu();

}  // namespace tinyshard
