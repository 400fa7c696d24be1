// Files of NumPy: one array (.npy, format versions 1 to 3) or a zip archive of them (.npz). Arrays
// of plain numbers and bools; objects, texts and records are refused.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype/dtype.h"
#include "io/zip.h"

namespace tinyshard::io {

struct NpyArray {
  DType dtype = DType::F32;
  bool big_endian = false;     // of elements of several bytes
  bool fortran_order = false;  // the first index moves fastest
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the elements in the file, or in `bytes`
  std::shared_ptr<const std::vector<std::byte>> bytes;  // inflated; null: they lie in the file
  std::shared_ptr<const PackedMember> packed;  // to be inflated when it is used; `offset` is in it
};

// The bytes of a whole file; `label` names it in errors. FormatError with the offset.
NpyArray parse_npy(std::span<const std::byte> file, std::string_view label);
std::map<std::string, NpyArray> parse_npz(std::span<const std::byte> file, std::string_view label);

// The bytes before the elements of a C-ordered array; a multiple of 64 of them. UserError for a
// type that NumPy does not have (bf16).
std::string npy_header(DType dtype, std::span<const int64_t> shape);

}  // namespace tinyshard::io
