// Readers of files read from a descriptor. Bytes from elsewhere go to a file in memory first, so that each
// format has one reader.
#include <vector>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/memory_file.h"
#include "core/nn/file_bytes_internal.h"

namespace tinyshard::nn {
namespace {

std::vector<std::byte> bytes_in(const Tensor& tensor) {
  if (!tensor.defined() || tensor.dtype() != DType::U8 || tensor.ndim() != 1)
    fail(fmt::format("the bytes of a file are u8[n], not {}", tensor.describe()));
  return tensor.data();
}

}  // namespace

FileBytes::FileBytes(const std::filesystem::path& path)
    : map(path), file(open_to_share(path)), bytes(map.bytes()), name(path.native()) {}

FileBytes::FileBytes(std::span<const std::byte> given)
    : file(std::make_shared<const OpenFile>(memory_file(given))),
      name(fmt::format("a file of {} bytes in memory", given.size())) {
  if (given.empty()) return;
  held = map_to_change(*file, 0, given.size(), name);
  bytes = {static_cast<const std::byte*>(held.get()), given.size()};
}

FileBytes::FileBytes(const Tensor& given)
    : FileBytes(std::span<const std::byte>(bytes_in(given))) {}

}  // namespace tinyshard::nn
