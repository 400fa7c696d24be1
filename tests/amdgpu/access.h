// Accesses of one lane to the memories that a kernel sees, checked.
#pragma once

#include <cstdint>

#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {

enum class Use : std::uint8_t { Read, Write, Atomic };

// LDS at `address`. A write passes its bytes, which decide if two waves disagree. `defined`, where given, becomes false
// when a byte was never written.
std::uint8_t* local_at(Wave& w, std::uint64_t address, unsigned bytes, int lane, Use use,
                       const void* written = nullptr, bool* defined = nullptr);

std::uint8_t* scratch_at(Wave& w, std::uint64_t address, unsigned bytes, int lane);

// Global memory, or by the upper half of the address LDS or scratch when `flat`.
std::uint8_t* flat_at(Wave& w, std::uint64_t address, unsigned bytes, int lane, Use use, bool flat,
                      const void* written = nullptr, bool* defined = nullptr);

// Fails where active lanes use an address or a value that was never written.
void check_defined(const Wave& w, const char* what);

}  // namespace amdgpu_emulator
