// Kernels of scatters and sorts are made by the code generator, one for each shape.
#include "devices/hip/library_calls.h"

#include "core/base/error.h"
#include "core/codegen/scatter.h"
#include "core/codegen/sort.h"
#include "devices/gpu/scatter.h"
#include "devices/gpu/sort.h"

namespace tinyshard::hip {

bool library_supports(const LibraryCall& call, std::string* why) {
  if (call.node.op() == Op::ScatterAdd && call.results.empty() && call.also.empty())
    return gpu::scatter_supports(call, why);
  if (call.node.op() == Op::Sort) return gpu::sort_supports(call, why);
  if (why) *why = "no library for it";
  return false;
}

std::unique_ptr<Program> make_library_program(gpu::Gpu& gpu, const LibraryCall& call) {
  check_internal(library_supports(call, nullptr), "a library call that was refused");
  const Target& target = gpu.target();
  const gpu::SortCode sort = {[&](const SortShape& s) { return compile_row_sort(s, target); },
                              [&](const SortShape& s) { return compile_sort_steps(s, target); }};
  if (call.node.op() == Op::Sort) return gpu::make_sort(gpu, call, sort);
  return gpu::make_scatter(
      gpu, call,
      {[&](const ScatterShape& s) { return compile_scatter(s, target); },
       [&](const ScatterShape& s) { return compile_sorted_scatter(s, target); }, sort});
}

}  // namespace tinyshard::hip
