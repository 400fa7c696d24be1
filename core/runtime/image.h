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

// Code that was made with TS_CHECK=memory checks each of its loads and stores. Its entry takes the
// address of this, zero, behind the last buffer, and leaves the first access there that would have
// been outside of its buffer. Such accesses go to memory that is harmless: the kernel ends.
struct AccessFault {
  int64_t found = 0;                      // 1 as soon as there is one
  int64_t param = 0;                      // the buffer's slot
  int64_t element = 0;                    // counted from its beginning
  int64_t numel = 0;                      // that it has
  int64_t stores = 0;                     // whether it was a store
  alignas(64) char elsewhere[1024] = {};  // where stores go instead; the largest vector and more
};

}  // namespace tinyshard
