// Scatters of a GPU: calls of Op::ScatterAdd as shapes (core/runtime/scatter_shape.h), and the programs
// of the kernels that a maker's folder has for them.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/runtime/device.h"
#include "core/runtime/scatter_shape.h"
#include "devices/gpu/gpu.h"
#include "devices/gpu/sort.h"

namespace tinyshard::gpu {

struct ScatterCode {
  std::function<ObjectCode(const ScatterShape&)>
      grouped;  // sums: groups of rows look at all of the source
  std::function<SortedScatter(const ScatterShape&)> sorted;  // of each reduction, by sorted rows
  SortCode sort;
};

// Nothing for a call that kernels of this kind do not take; scatter_supports says why.
std::optional<ScatterShape> scatter_shape(const LibraryCall& call);
bool scatter_supports(const LibraryCall& call, std::string* why);
// The call is one that is supported.
std::unique_ptr<Program> make_scatter(Gpu& gpu, const LibraryCall& call, const ScatterCode& code);

}  // namespace tinyshard::gpu
