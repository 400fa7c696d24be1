// The container of machine code between the code generator and a CPU device: a header, then code
// and constants that run at any address with the given alignment. No symbols, no relocations.
#pragma once
#include <cstdint>

namespace tinyshard {

struct ImageHeader {
  static constexpr uint32_t kMagic = 0x4d495354;  // "TSIM"

  uint32_t magic = kMagic;
  uint32_t alignment = 64;  // of the first byte behind the header
  uint64_t entry = 0;       // offsets count from the first byte behind the header
  uint64_t size = 0;        // bytes behind the header
};

}  // namespace tinyshard
