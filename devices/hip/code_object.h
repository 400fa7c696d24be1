// Reads what a code object says of its kernels, for launches and for people: an ELF file whose symbols are
// each kernel's entry and its descriptor, "entry.kd".
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tinyshard::hip {

// Fields of a kernel's descriptor, 64 bytes (AMDHSA, code objects of version 3 and later).
struct KernelDescriptor {
  uint32_t shared_bytes, private_bytes;  // of a block, of a thread
  uint32_t argument_bytes;
};

// Nothing where the file has no such kernel, or is no code object.
std::optional<KernelDescriptor> find_descriptor(std::span<const char> code, std::string_view entry);

}  // namespace tinyshard::hip
