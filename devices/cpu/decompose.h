// Factors of matrices on the CPU: QR by reflections, singular values by rotations of columns, both in
// f64, whatever the type of the elements. One matrix is one thread's work, so that results do not
// depend on the number of threads. For small matrices: an m by n one takes O(m^2 n) and is not
// blocked.
//
// NaN and infinities lead to factors that hold some, after a bounded number of steps.
#pragma once
#include <cstdint>
#include <span>

#include "core/uop/uop.h"

namespace tinyshard {

class ThreadPool;

struct DecomposeSpec {
  DType dtype = DType::F32;  // f64 f32 f16 bf16
  int64_t matrices = 1, m = 0, n = 0;
};

// Returns how many bytes a decomposition into these factors needs beside them, on a pool of so many
// threads.
int64_t decompose_scratch_bytes(const DecomposeSpec& spec, std::span<const DecomposeArg> factors,
                                int threads);

// Writes each of the factors to its place in `results`. x is [matrices, m, n], contiguous as they are,
// and shares no memory with them; scratch is aligned to 64 bytes. Each matrix is decomposed once for
// all of its factors that belong together.
void decompose(const DecomposeSpec& spec, const void* x, std::span<const DecomposeArg> factors,
               void* const* results, void* scratch, ThreadPool& pool);

}  // namespace tinyshard
