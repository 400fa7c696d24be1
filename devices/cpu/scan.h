// Scans on the CPU: running totals of the lines [outer, n, inner] along n, at the rate of memory. The
// result depends on the sizes alone, not on the number of threads.
#pragma once
#include <cstdint>

#include "core/uop/scan.h"

namespace tinyshard {

class ThreadPool;

struct ScanSpec {
  ScanArg arg;
  DType dtype = DType::F32;
  int64_t outer = 1, n = 0, inner = 1;
};

// Floats and integers of 32 and 64 bits; logs of sums are of floats.
bool scan_supports(const ScanSpec& spec);

// Returns how many bytes a scan needs beside x and out.
int64_t scan_scratch_bytes(const ScanSpec& spec);

// x and out are [outer, n, inner], contiguous; out has x's type, or is of I32 for places. scratch is
// aligned to 64 bytes.
void scan_lines(const ScanSpec& spec, const void* x, void* out, void* scratch, ThreadPool& pool);

}  // namespace tinyshard
