// Frame of all HIP calls: each takes the runtime's lock, and a failure inside becomes an error code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>

#include "tests/amdgpu/runtime.h"
#include "tests/amdgpu/wave.h"

#define AMDGPU_EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

namespace amdgpu_emulator {

// Runs `call` with the runtime; gives its status.
template <class Call>
int guarded(Call call) {
  try {
    Runtime& state = runtime();
    const std::lock_guard lock(state.mutex);
    return call(state);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "amdgpu emulator: %s\n", error.what());
    return kInvalidValue;
  }
}

}  // namespace amdgpu_emulator
