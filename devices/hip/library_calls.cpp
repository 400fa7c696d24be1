// Kernels of scatters are made by the code generator, one for each shape.
#include "devices/hip/library_calls.h"

#include "core/base/error.h"
#include "core/codegen/scatter.h"
#include "devices/gpu/scatter.h"

namespace tinyshard::hip {

bool library_supports(const LibraryCall& call, std::string* why) {
  if (call.node.op() == Op::ScatterAdd && call.results.empty() && call.also.empty())
    return gpu::scatter_supports(call, why);
  if (why) *why = "no library for it";
  return false;
}

std::unique_ptr<Program> make_library_program(gpu::Gpu& gpu, const LibraryCall& call) {
  check_internal(library_supports(call, nullptr), "a library call that was refused");
  return gpu::make_scatter(
      gpu, call, [&](const ScatterShape& shape) { return compile_scatter(shape, gpu.target()); });
}

}  // namespace tinyshard::hip
