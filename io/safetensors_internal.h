// Shared by the reader and the writer of safetensors files.
#pragma once
#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "io/safetensors.h"

namespace tinyshard::io {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

inline constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit
inline constexpr std::string_view kMetadataKey = "__metadata__";

inline std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// model.safetensors.index.json: which tensors are in which of the files beside it.
struct SafetensorsIndex {
  std::map<std::string, std::vector<std::string>> names_of_file;  // plain names, without folders
  Metadata metadata;  // a value that is no string, as JSON
};
// FormatError for whatever is no index; `label` names the file.
SafetensorsIndex parse_index(std::string_view text, std::string_view label);

}  // namespace tinyshard::io
