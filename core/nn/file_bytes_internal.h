// The bytes of a whole file where they are: in a file that is mapped, or in memory, which becomes a
// file without a name, so that a loader has one way to read. Internal to core/nn.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/tensor/map_file.h"

namespace tinyshard::nn {

struct FileBytes {
  explicit FileBytes(const std::filesystem::path& path);
  explicit FileBytes(std::span<const std::byte> given);  // copied
  explicit FileBytes(const Tensor& given);               // UserError unless it is u8[n]
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  MappedFile map;
  SharedFile file;                   // of the tensors that are made
  std::shared_ptr<void> held;        // of memory
  std::span<const std::byte> bytes;  // for as long as this lives
  std::string name;                  // the path, or "a file of 812 bytes in memory"
};

}  // namespace tinyshard::nn
