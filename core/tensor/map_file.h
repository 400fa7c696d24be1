// Files as tensors.
#pragma once
#include <string>

#include "core/tensor/tensor.h"

namespace tinyshard {

// `shape` elements of a file from byte `offset` on, on DISK:0. Nothing is read before it is used:
// map_file("w.bin", {n, k}, DType::F32).shard(mesh, {{"model", Shard(0)}}) brings each device its
// rows, and no process the whole. Computing with it as it is runs on the CPU; assigning to it
// leaves the file alone. UserError when the file is missing or too short.
Tensor map_file(const std::string& path, const Ints& shape, DType dtype, int64_t offset = 0,
                Caller caller = Caller::current());

}  // namespace tinyshard
