// Launches: a grid of workgroups is executed on threads of the host.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/amdgpu/code_object.h"

namespace amdgpu_emulator {

class DeviceMemory;

struct Launch {
  const Kernel* kernel = nullptr;
  std::array<std::uint32_t, 3> blocks{1, 1, 1};
  std::array<std::uint32_t, 3> threads{1, 1, 1};
  std::uint32_t dynamic_local_bytes = 0;
  std::vector<std::uint8_t> kernarg;  // explicit and hidden arguments
};

struct LaunchCounts {
  std::uint64_t instructions = 0;  // of waves
  std::uint64_t lanes = 0;         // lanes of those
};

// The argument block of a launch: the values that `params` point to, where the notes place them, and the hidden ones.
std::vector<std::uint8_t> argument_block(const Kernel& kernel, void* const* params,
                                         const std::array<std::uint32_t, 3>& blocks,
                                         const std::array<std::uint32_t, 3>& threads);

// Runs all of it. Fails with a Fault whose text names the kernel, the workgroup, the wave, the lane and the instruction.
LaunchCounts run(const Launch& launch, DeviceMemory& memory, int host_threads);

}  // namespace amdgpu_emulator
