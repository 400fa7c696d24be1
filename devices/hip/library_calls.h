// Calls that an AMD GPU takes besides generated kernels of graphs: scatters. All else is spelled in
// loops, as products and convolutions are without a library.
#pragma once
#include <memory>
#include <string>

#include "devices/gpu/gpu.h"

namespace tinyshard::hip {

bool library_supports(const LibraryCall& call, std::string* why);
std::unique_ptr<Program> make_library_program(gpu::Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::hip
