// Elementwise combination of several buffers: out[i] = in[0][i] op in[1][i] op ..., always in that
// order. f16 and bf16 are combined in f32 and rounded once. `out` may be one of the inputs; other
// overlaps are not allowed. Pure computation, any thread.
#pragma once
#include <cstddef>
#include <span>

#include "core/dtype/dtype.h"
#include "core/runtime/communicator.h"

namespace tinyshard {

void reduce_buffers(DType dtype, ReduceOp op, std::byte* out, std::span<const std::byte* const> in,
                    size_t count);

}  // namespace tinyshard
