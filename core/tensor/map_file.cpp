#include "core/tensor/map_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/file_buffer.h"

namespace tinyshard {

Tensor map_file(const std::string& path, const Ints& shape, DType dtype, int64_t offset,
                Caller caller) {
  Call call("map_file", caller);
  if (std::ranges::any_of(shape.values, [](int64_t size) { return size < 0; })) {
    throw UserError(fmt::format("a shape has no negative sizes: {}", to_string(shape.values)));
  }
  return Tensor(file_buffer(path, shape.values, dtype, offset));
}

}  // namespace tinyshard
