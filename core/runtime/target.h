// What code generation needs to know of a device kind, and what it hands back to the device. Plain
// data, so that devices do not see the code generator and the code generator sees no device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tinyshard {

struct Target {
  std::string triple;     // "x86_64-pc-linux-gnu"
  std::string cpu;        // "znver4"
  std::string features;   // "+avx512f,..."
  int vector_bits = 128;  // widest registers worth using
  bool operator==(const Target&) const = default;
};

// A compiled kernel. On CPU targets `bytes` is an image, position independent code whose entry has
// the signature
//   void entry(void* const* buffers, const int64_t* coordinates, int64_t begin, int64_t end)
// and does the work items [begin, end) of work_items; items are independent of each other.
struct ObjectCode {
  std::string entry;
  std::vector<char> bytes;
  int64_t work_items = 1;
  int64_t min_items = 1;  // fewer items than this are not worth another thread
};

}  // namespace tinyshard
