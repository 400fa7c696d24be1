// Values of more than a page are mapped, privately, so that nothing is read before
// it is used and no write reaches the file; smaller ones are read into memory, as
// a map takes a page at least. A value is its part of the file where only copies,
// moves and other shapes lie above the Buffer, and no tensor holds the Buffer
// itself, through which it could be changed: then readers may go to the file.
#include "core/exec/file_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"

namespace tinyshard {
namespace {

constexpr size_t kReadAtOnce = 4096;  // a map takes a page at least

std::shared_ptr<void> contents(const OpenFile& file, int64_t offset, size_t bytes,
                               const std::string& path) {
  if (bytes > kReadAtOnce) return map_to_change(file, uint64_t(offset), bytes, path);
  void* memory = nullptr;
  const size_t room = std::max<size_t>(bytes, Storage::kAlignment);
  if (posix_memalign(&memory, Storage::kAlignment, room) != 0)
    throw DeviceError(fmt::format("no memory for {} bytes of {}", bytes, path));
  std::shared_ptr<void> owner(memory, std::free);
  read_at(file, uint64_t(offset), {static_cast<std::byte*>(memory), bytes}, path);
  return owner;
}

// The values that a file holds, and where: readers of parts go to the file itself.
class FileStorage : public Storage {
 public:
  FileStorage(Dims shape, DType dtype, FileRegion where)
      : Storage(std::move(shape), dtype, replicated(Mesh::single({.kind = "DISK"}))),
        region(std::move(where)) {}
  FileRegion region;
};

UOp buffer_of(const OpenFile& file, const std::string& path, DimSpan shape, DType dtype,
              int64_t offset, const FileRegion* region) {
  size_t bytes = static_cast<size_t>(product(shape)) * itemsize(dtype);
  if (offset < 0 || uint64_t(offset) > file.size || bytes > file.size - uint64_t(offset)) {
    throw UserError(fmt::format("{} has {} bytes: {}{} from byte {} on needs {}", path, file.size,
                                name(dtype), to_string(shape), offset, bytes));
  }
  std::shared_ptr<void> memory = contents(file, offset, bytes, path);
  Dims dims(shape.begin(), shape.end());
  std::shared_ptr<Storage> storage;
  if (region) {
    storage = std::make_shared<FileStorage>(std::move(dims), dtype, *region);
  } else {
    storage = std::make_shared<Storage>(std::move(dims), dtype,
                                        replicated(Mesh::single({.kind = "DISK"})));
  }
  storage->adopt(memory.get(), memory);
  return buffer_node(std::move(storage));
}

}  // namespace

UOp file_buffer(const FileRegion& region, DimSpan shape, DType dtype) {
  return buffer_of(*region.file, region.path, shape, dtype, static_cast<int64_t>(region.offset),
                   &region);
}

UOp file_buffer(const std::string& path, DimSpan shape, DType dtype, int64_t offset) {
  return buffer_of(open_to_read(path), path, shape, dtype, offset, nullptr);
}

const FileRegion* region_of(const UOp& value) {
  const UOp* node = &value;
  for (;;) {
    const Op op = node->op();
    // A Redistribute may round to another type on its way.
    const bool passes = op == Op::Identity || op == Op::Detach || op == Op::Reshape ||
                        op == Op::Contiguous ||
                        (op == Op::Redistribute && node->dtype() == node->src(0).dtype());
    if (!passes) break;
    node = &node->src(0);
  }
  if (node->op() != Op::Buffer) return nullptr;
  return region_of(*Storage::of(**node));
}

const FileRegion* region_of(const Storage& storage) {
  const auto* file = dynamic_cast<const FileStorage*>(&storage);
  if (file == nullptr || storage.is_lost() || holder(storage) != nullptr) return nullptr;
  return &file->region;
}

}  // namespace tinyshard
