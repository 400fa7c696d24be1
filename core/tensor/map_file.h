// Files as tensors.
#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/file.h"
#include "core/tensor/tensor.h"

namespace tinyshard {

// `shape` elements of a file from byte `offset` on, on DISK:0. Nothing is read before it is used:
// map_file("w.bin", {n, k}, DType::F32).shard(mesh, {{"model", Shard(0)}}) brings each device its
// rows, and no process the whole. Computing with it as it is runs on the CPU; with other tensors it
// meets them on their devices. Assigning to it leaves the file alone. UserError when the file is missing or too short.
Tensor map_file(const std::string& path, const Ints& shape, DType dtype, int64_t offset = 0,
                Caller caller = Caller::current());

using SharedFile = std::shared_ptr<const OpenFile>;
SharedFile open_to_share(const std::filesystem::path& path);

// The same of an open file, which stays open as long, brought to the default device when it is used: it meets other tensors
// there. It is still not read before, and shard(), to() and load_state_dict bring each device its
// part straight from the file. What loaders of models give is this.
Tensor load_from(const SharedFile& file, const std::string& path, const Ints& shape, DType dtype,
                 uint64_t offset);

}  // namespace tinyshard
