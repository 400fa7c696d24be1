// Three kinds of tensor come from files. Mapped ones are a Buffer on the
// device DISK, moved to the default device when they are used; values that
// have to be decoded are read at their first use (load_later); values of types
// that nobody can read are there by name and shape, and their use is an error.
#include "core/tensor/map_file.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/file_buffer.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"

namespace tinyshard {

Tensor map_file(const std::string& path, const Ints& shape, DType dtype, int64_t offset,
                Caller caller) {
  Call call("map_file", caller);
  if (std::ranges::any_of(shape.values, [](int64_t size) { return size < 0; })) {
    fail(fmt::format("a shape has no negative sizes: {}", to_string(shape.values)));
  }
  return Tensor(file_buffer(path, shape.values, dtype, offset));
}

SharedFile open_to_share(const std::filesystem::path& path) {
  return std::make_shared<const OpenFile>(open_to_read(path));
}

Tensor load_from(const SharedFile& file, const std::string& path, const Ints& shape, DType dtype,
                 uint64_t offset) {
  // Nothing is read of an empty tensor, and files may name millions of them.
  if (product(shape.values) == 0) return Tensor::zeros(shape, dtype);
  const UOp stored = file_buffer({file, path, offset}, shape.values, dtype);
  return Tensor(place(stored, replicated(default_mesh())));
}

namespace {

Tensor on_default_device(std::shared_ptr<Storage> storage) {
  return Tensor(place(buffer_node(std::move(storage)), replicated(default_mesh())));
}
std::shared_ptr<Storage> storage_on_disk(const Ints& shape, DType dtype) {
  return std::make_shared<Storage>(shape.values, dtype, replicated(Mesh::single({.kind = "DISK"})));
}

}  // namespace

Tensor load_later(const Ints& shape, DType dtype, std::function<void(std::span<std::byte>)> read) {
  if (product(shape.values) == 0) return Tensor::zeros(shape, dtype);
  const std::shared_ptr<Storage> storage = storage_on_disk(shape, dtype);
  storage->adopt_later([read = std::move(read), bytes = storage->local_bytes()] {
    const size_t room =
        (bytes + Storage::kAlignment - 1) / Storage::kAlignment * Storage::kAlignment;
    std::shared_ptr<void> memory(std::aligned_alloc(Storage::kAlignment, room), std::free);
    if (!memory) throw DeviceError(fmt::format("no memory for {} bytes of a file", bytes));
    read({static_cast<std::byte*>(memory.get()), bytes});
    return memory;
  });
  return on_default_device(storage);
}

Tensor refused(const Ints& shape, std::string why) {
  const std::shared_ptr<Storage> storage = storage_on_disk(shape, DType::U8);
  storage->refusal = std::move(why);
  return on_default_device(storage);
}

void check_not_refused(const Tensor& tensor) {
  const UOp* node = &tensor.state()->value;
  while (node->op() == Op::Redistribute || node->op() == Op::Identity) node = &node->src(0);
  if (node->op() == Op::Buffer && !Storage::of(**node)->refusal.empty())
    fail(Storage::of(**node)->refusal);
}

}  // namespace tinyshard
