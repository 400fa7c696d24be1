// A code object, as LLVM and lld make them: an ELF file whose segments are placed in a device's memory, with a descriptor
// of 64 bytes for each kernel and notes that tell of its arguments.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/amdgpu/decode.h"

namespace amdgpu_emulator {

class DeviceMemory;

struct Argument {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
  std::string kind;  // by_value, global_buffer, hidden_block_count_x and so on
};

struct Kernel {
  std::string name;
  std::uint64_t entry = 0;
  std::uint32_t local_bytes = 0;
  std::uint32_t scratch_bytes = 0;
  std::uint32_t kernarg_bytes = 0;
  std::uint32_t rsrc1 = 0;
  std::uint32_t rsrc2 = 0;
  std::uint32_t rsrc3 = 0;
  std::uint32_t properties = 0;
  std::uint32_t preload = 0;  // length in dwords below bit 7, offset above
  std::vector<Argument> arguments;
  const Code* code = nullptr;
  int device = 0;

  [[nodiscard]] bool wave32() const { return (properties & 1024U) != 0; }
};

class CodeObject {
 public:
  // Fails with a Fault where the file is none for `target`.
  CodeObject(std::span<const std::uint8_t> file, const std::string& target, DeviceMemory& memory,
             int device);
  ~CodeObject();
  CodeObject(const CodeObject&) = delete;
  CodeObject& operator=(const CodeObject&) = delete;

  [[nodiscard]] const Kernel* find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, Kernel>& kernels() const { return kernels_; }
  [[nodiscard]] std::uint64_t base() const { return base_; }

 private:
  void place(std::span<const std::uint8_t> file);
  void relocate(std::span<const std::uint8_t> file);
  void read_kernels(std::span<const std::uint8_t> file);
  void read_notes(std::span<const std::uint8_t> file);

  DeviceMemory& memory_;
  int device_;
  std::uint64_t base_ = 0;
  std::uint64_t size_ = 0;
  std::unique_ptr<Code> code_;
  std::map<std::string, Kernel> kernels_;
};

}  // namespace amdgpu_emulator
