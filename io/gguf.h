// GGUF files, versions 2 and 3: key/values, then a table of tensors, then aligned data, which may
// be quantised in blocks. Here they are found and checked; core/nn/gguf.cpp computes their values.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype/dtype.h"
#include "io/value.h"

namespace tinyshard::io {

// A type of ggml, by its number in files. `block` elements take `bytes`.
struct GgmlType {
  std::string_view name;  // "Q4_0"
  uint32_t number;
  uint32_t block, bytes;
  std::optional<DType> plain;  // the element type of those that are not quantised
};
const GgmlType* ggml_type(uint32_t number);  // nullptr for one that has no values here
// Returns the name of a type that llama.cpp has or had.
std::string_view name_of_ggml_type(uint32_t number);  // empty for one that is not known

struct GgufTensor {
  std::string name;
  const GgmlType* type = nullptr;  // null: it has no values here, only a name; `bytes` says nothing
  uint32_t number = 0;
  std::vector<int64_t> shape;  // outermost first, as everywhere else here; GGUF stores the reverse
  uint64_t offset = 0;         // in the file
  uint64_t bytes = 0;
};

struct GgufFile {
  GgufFile() = default;
  explicit GgufFile(const std::filesystem::path& path);

  ValueMap kv;
  std::vector<GgufTensor> tensors;  // in the order of the file's table
};

// Reads the bytes of a whole file; `label` names it in errors. FormatError with the offset.
GgufFile parse_gguf(std::span<const std::byte> file, std::string_view label);

}  // namespace tinyshard::io
