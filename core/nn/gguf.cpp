// GGUF tensors as lazy tensors: of a quantised one its blocks, u8 [blocks, bytes], and the ops that
// compute its elements from them (gguf_formats.cpp).
//
// A model may be split over files: "m-00001-of-00003.gguf" and so on, each with the number of files
// and its own in its key/values. Any of them stands for the whole; the settings are the first one's.
#include "io/gguf.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/nn/file_bytes_internal.h"
#include "core/nn/files.h"
#include "core/nn/gguf_formats.h"
#include "core/tensor/map_file.h"
#include "io/errors.h"

namespace tinyshard::nn {
namespace {

namespace fs = std::filesystem;

Tensor tensor_of(const io::GgufTensor& stored, const SharedFile& file, const std::string& path) {
  const Dims shape(stored.shape.begin(), stored.shape.end());
  if (!stored.type)
    return refused(shape,
                   fmt::format("tensor {} of {} has ggml type {}, {}, which is not supported",
                               io::in_quotes(stored.name), path, stored.number,
                               io::name_of_ggml_type(stored.number)));
  if (stored.type->plain) return load_from(file, path, shape, *stored.type->plain, stored.offset);
  if (product(shape) == 0) return Tensor::zeros(shape, DType::F32);
  const auto width = static_cast<int64_t>(stored.type->bytes);
  const Ints blocks{static_cast<int64_t>(stored.bytes) / width, width};
  return gguf_values(stored.type->name, load_from(file, path, blocks, DType::U8, stored.offset))
      .reshape(shape);
}

int64_t number_of(const io::GgufFile& file, const char* key, int64_t otherwise) {
  const auto found = file.kv.find(key);
  if (found == file.kv.end()) return otherwise;
  const auto* number = std::get_if<int64_t>(&found->second);
  return number ? *number : otherwise;
}

std::string ending(int64_t number, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// The files of a split model, in order, by the name of one of them.
std::vector<fs::path> parts_of(const fs::path& path, int64_t number, int64_t count) {
  constexpr int64_t kMost = 65536;
  const std::string name = path.filename().string(), own = ending(number, count);
  if (count > kMost || number < 0 || number >= count || !name.ends_with(own))
    throw io::FormatError(
        path.native(),
        fmt::format("it is part {} of {} of a model, but its name does not end in {}: "
                    "the others are not found",
                    number + 1, count, own));
  std::vector<fs::path> paths;
  for (int64_t i = 0; i < count; ++i) {
    paths.push_back(path.parent_path() /
                    (name.substr(0, name.size() - own.size()) + ending(i, count)));
    std::error_code error;
    if (!fs::exists(paths.back(), error))
      fail(fmt::format("{} is part {} of {} of a model, and part {} is missing: {}", path.native(),
                       number + 1, count, i + 1, paths.back().native()));
  }
  return paths;
}

void add_tensors(const io::GgufFile& found, const SharedFile& file, const std::string& path,
                 StateDict& tensors) {
  for (const io::GgufTensor& stored : found.tensors) {
    if (!tensors.emplace(stored.name, tensor_of(stored, file, path)).second)
      throw io::FormatError(path, fmt::format("tensor {} is in another part of the model, too",
                                              io::in_quotes(stored.name)));
  }
}

std::pair<io::ValueMap, StateDict> gguf_tensors(const FileBytes& from) {
  io::GgufFile found = io::parse_gguf(from.bytes, from.name);
  if (const int64_t count = number_of(found, "split.count", 0); count > 1)
    fail(fmt::format("{} is one of {} parts of a model: their paths are needed", from.name, count));
  StateDict tensors;
  add_tensors(found, from.file, from.name, tensors);
  return {std::move(found.kv), std::move(tensors)};
}

}  // namespace

std::pair<io::ValueMap, StateDict> gguf_load(std::span<const std::byte> bytes, Caller caller) {
  Call call("gguf_load", caller);
  return gguf_tensors(FileBytes(bytes));
}
std::pair<io::ValueMap, StateDict> gguf_load(const Tensor& bytes, Caller caller) {
  Call call("gguf_load", caller);
  return gguf_tensors(FileBytes(bytes));
}

std::pair<io::ValueMap, StateDict> gguf_load(const fs::path& path, Caller caller) {
  Call call("gguf_load", caller);
  io::GgufFile found(path);
  StateDict tensors;
  const int64_t count = number_of(found, "split.count", 0);
  if (count <= 1) {
    add_tensors(found, open_to_share(path), path.native(), tensors);
    return {std::move(found.kv), std::move(tensors)};
  }
  const int64_t in_all = number_of(found, "split.tensors.count", -1);
  io::ValueMap settings;
  const std::vector<fs::path> paths = parts_of(path, number_of(found, "split.no", -1), count);
  for (int64_t i = 0; i < count; ++i) {
    io::GgufFile part(paths[size_t(i)]);
    if (number_of(part, "split.no", -1) != i || number_of(part, "split.count", 0) != count)
      throw io::FormatError(paths[size_t(i)].native(),
                            fmt::format("it is not part {} of {}, as its name says", i + 1, count));
    add_tensors(part, open_to_share(paths[size_t(i)]), paths[size_t(i)].native(), tensors);
    if (i == 0) settings = std::move(part.kv);
  }
  if (in_all >= 0 && int64_t(tensors.size()) != in_all)
    throw io::FormatError(path.native(),
                          fmt::format("the parts of the model hold {} tensors, {} are "
                                      "said to be there",
                                      tensors.size(), in_all));
  return {std::move(settings), std::move(tensors)};
}

}  // namespace tinyshard::nn
