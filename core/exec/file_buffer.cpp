#include "core/exec/file_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/exec/storage.h"

namespace tinyshard {
namespace {

constexpr int64_t kAlignment = 64;  // of what kernels work on

// The file's bytes from `offset` on. Kernels cannot work on a map that begins elsewhere.
std::shared_ptr<void> aligned(const OpenFile& file, int64_t offset, size_t bytes,
                              const std::string& path) {
  if (bytes > 0 && offset % kAlignment == 0) return map_to_change(file, offset, bytes, path);
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, std::max<size_t>(bytes, kAlignment)) != 0)
    throw DeviceError(fmt::format("no memory for {} bytes of {}", bytes, path));
  std::shared_ptr<void> owner(memory, std::free);
  read_at(file, offset, {static_cast<std::byte*>(memory), bytes}, path);
  return owner;
}

}  // namespace

UOp file_buffer(const std::string& path, DimSpan shape, DType dtype, int64_t offset) {
  const OpenFile file = open_to_read(path);
  size_t bytes = static_cast<size_t>(product(shape)) * itemsize(dtype);
  if (offset < 0 || uint64_t(offset) > file.size || bytes > file.size - uint64_t(offset)) {
    throw UserError(fmt::format("{} has {} bytes: {}{} from byte {} on needs {}", path, file.size,
                                name(dtype), to_string(shape), offset, bytes));
  }
  std::shared_ptr<void> memory = aligned(file, offset, bytes, path);
  auto storage = std::make_shared<Storage>(Dims(shape.begin(), shape.end()), dtype,
                                           replicated(Mesh::single({.kind = "DISK"})));
  storage->adopt(memory.get(), memory);
  return buffer_node(std::move(storage));
}

}  // namespace tinyshard
