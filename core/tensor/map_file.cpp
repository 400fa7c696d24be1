#include "core/tensor/map_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/file_buffer.h"
#include "core/exec/state.h"

namespace tinyshard {

Tensor map_file(const std::string& path, const Ints& shape, DType dtype, int64_t offset,
                Caller caller) {
  Call call("map_file", caller);
  if (std::ranges::any_of(shape.values, [](int64_t size) { return size < 0; })) {
    throw UserError(fmt::format("a shape has no negative sizes: {}", to_string(shape.values)));
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

}  // namespace tinyshard
