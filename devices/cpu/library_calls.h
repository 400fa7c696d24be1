// The graph's products, convolutions, scatters and sorts as calls of the CPU's libraries.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/runtime/device.h"

namespace tinyshard {

class ThreadPool;

bool cpu_library_supports(const LibraryCall& call, std::string* why);
// Programs take the memory that they work in from the device.
std::unique_ptr<Program> make_cpu_library_program(const LibraryCall& call, ThreadPool& pool,
                                                  Device& device);
// Bytes that programs of these calls keep; equal calls are one program.
int64_t cpu_workspace_bytes(std::span<const LibraryCall* const> calls, const ThreadPool& pool);

}  // namespace tinyshard
