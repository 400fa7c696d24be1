// Calls that a GPU leaves to libraries and to kernels written by hand.
#pragma once
#include <memory>
#include <string>

#include "core/runtime/target.h"
#include "devices/cuda/executor.h"

namespace tinyshard::cuda {

// Returns whether a call can be put into the libraries' terms, for plans made without a GPU. Where
// there is one, its libraries are asked as well (library_supports): they may be missing, or lack an
// engine for such a call.
bool library_expresses(const Target& target, const LibraryCall& call, std::string* why);
bool library_supports(const Gpu& gpu, const LibraryCall& call, std::string* why);
// Does the work that takes long before the first program of a kind.
void prepare_library_call(Gpu& gpu, const LibraryCall& call);
std::unique_ptr<Program> make_library_program(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
