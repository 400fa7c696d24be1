// What the reader and the writer of safetensors files share.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/ranges.h>

namespace tinyshard::io {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

inline constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit
inline constexpr std::string_view kMetadataKey = "__metadata__";

inline std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace tinyshard::io
