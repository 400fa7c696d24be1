// Sorts of a GPU: the order of the elements of each row, by the kernels that a maker's folder
// has for them (core/runtime/sort_shape.h).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/runtime/device.h"
#include "core/runtime/sort_shape.h"
#include "devices/gpu/program.h"

namespace tinyshard::gpu {

struct SortCode {
  std::function<ObjectCode(const SortShape&)> row;   // of rows that fit a tile
  std::function<SortSteps(const SortShape&)> steps;  // of others
};

// Dense rows of unsigned keys. `why`, if not null, is set where a call is refused.
bool sort_supports(const LibraryCall& call, std::string* why);
// Takes keys and order. Its workspace begins with so many bytes that are the caller's, and that are free while
// it does not run.
class SortProgram : public GpuProgram {
 public:
  using GpuProgram::GpuProgram;
  virtual char* reserved() const = 0;
  // Where the keys of long rows lie in their order after a run; null for others, which do not move.
  virtual void* moved_keys() const { return nullptr; }
};
std::unique_ptr<SortProgram> make_sort(Gpu& gpu, const SortShape& shape, const SortCode& code,
                                       int64_t reserved = 0);
// The call is one that is supported.
std::unique_ptr<Program> make_sort(Gpu& gpu, const LibraryCall& call, const SortCode& code);
int64_t sort_workspace_bytes(const LibraryCall& call);

}  // namespace tinyshard::gpu
