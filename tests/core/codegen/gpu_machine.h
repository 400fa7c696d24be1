// Machines for GPU code: the first GPU, or a folder that collects the PTX.
#pragma once
#include <string>

#include "tests/core/codegen/machine.h"

namespace tinyshard::test {

// Null, with the reason, where there is no GPU.
std::unique_ptr<Machine> make_gpu_machine(std::string& reason);
std::unique_ptr<Machine> make_ptx_writer(const std::string& folder);

}  // namespace tinyshard::test
