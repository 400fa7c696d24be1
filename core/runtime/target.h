// The facts that code generation needs of a device kind, and the code that it hands back. Plain
// data, so that devices do not see the code generator and the code generator sees no device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tinyshard {

struct Target {
  std::string triple;         // "x86_64-pc-linux-gnu", "amdgcn-amd-amdhsa"
  std::string cpu;            // "znver4", "gfx942"
  std::string features;       // "+avx512f,..."
  int vector_bits = 128;      // widest registers, or memory accesses, worth using
  double division_ulps = 0;   // by which a generated division of f32 may be off
  int memory_alignment = 64;  // of what kernels read and write; 1: that of its elements
  // GPUs only.
  int multiprocessors = 0;
  int shared_bytes = 0;     // that a block may have without asking for more
  int64_t cache_bytes = 0;  // under way on all multiprocessors that are found in the cache again
  double launch_ns = 0;     // and the rate of memory: for estimates of what kernels take
  double multiprocessor_bytes_per_ns = 0;
  bool operator==(const Target&) const = default;
};

// A compiled kernel. On CPU targets `bytes` is an image, position independent code whose entry has
// the signature
//   void entry(void* const* buffers, const int64_t* coordinates, int64_t begin, int64_t end)
// and does the work items [begin, end) of work_items; items are independent of each other.
// On GPU targets `bytes` is what the maker's driver takes, text that ends with a NUL or an object; a
// work item is a block of `block` threads. The entry takes one 64-bit pointer per parameter slot, then `coordinates` 64-bit integers: this device's place on
// the first mesh axes, and behind all axes the scalars of the kernel.
struct ObjectCode {
  std::string entry;
  std::vector<char> bytes;
  int64_t work_items = 1;
  int64_t min_items = 1;  // fewer items than this are not worth another thread
  int block = 0;          // threads of a block
  int shared_bytes = 0;   // of a block, beyond what the code declares
  int coordinates = 0;
  // Waits, in its own code, for what it depends on: it may begin before that has ended.
  bool waits_itself = false;
  // CPUs: not negative for code that checks its accesses (core/runtime/image.h), which takes an
  // AccessFault behind so many buffers.
  int checked_buffers = -1;
  bool operator==(const ObjectCode&) const = default;
};

}  // namespace tinyshard
