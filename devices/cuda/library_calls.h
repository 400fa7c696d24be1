// What a GPU leaves to libraries and to kernels written by hand.
#pragma once
#include <memory>
#include <string>

#include "devices/cuda/gpu.h"

namespace tinyshard::cuda {

bool library_supports(const Gpu& gpu, const LibraryCall& call, std::string* why);
// What takes long before the first program of a kind.
void prepare_library_call(Gpu& gpu, const LibraryCall& call);
std::unique_ptr<Program> make_library_program(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
