// What a GPU leaves to libraries and to kernels written by hand.
#pragma once
#include <memory>
#include <string>

#include "devices/cuda/gpu.h"

namespace tinyshard::cuda {

bool library_supports(const Gpu& gpu, const LibraryCall& call, std::string* why);
std::unique_ptr<Program> make_library_program(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
