// Files as tensors.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
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

// The same of an open file, which stays open as long, brought to the default device when it is used:
// it meets other tensors there. It is still not read before, and shard(), to() and load_state_dict
// bring each device its part straight from the file. What loaders of models give is this.
Tensor load_from(const SharedFile& file, const std::string& path, const Ints& shape, DType dtype,
                 uint64_t offset);

// The same of elements that `read` puts into memory when they are first used, such as compressed
// ones.
Tensor load_later(const Ints& shape, DType dtype, std::function<void(std::span<std::byte>)> read);

// Stands for a tensor of a file that cannot be used, of a type that is not known here: to use it is
// a UserError with this text. It has its shape and, for want of another type, u8.
Tensor refused(const Ints& shape, std::string why);
// UserError where the tensor is such a one.
void check_not_refused(const Tensor& tensor);

}  // namespace tinyshard
