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

namespace tinyshard::gpu {

using ScatterCode = std::function<ObjectCode(const ScatterShape&)>;

// Nothing for a call that kernels of this kind do not take; scatter_supports says why.
std::optional<ScatterShape> scatter_shape(const LibraryCall& call);
bool scatter_supports(const LibraryCall& call, std::string* why);
// The call is one that is supported.
std::unique_ptr<Program> make_scatter(Gpu& gpu, const LibraryCall& call, const ScatterCode& code);

}  // namespace tinyshard::gpu
