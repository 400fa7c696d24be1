// A Dot as cuBLASLt sees it: matrices that lie column by column, batches, and what follows the
// sums.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/device.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard::cuda {

using gpu::Epilogue;

// A matrix as cuBLASLt has them: columns one after the other, `ld` apart.
struct Matrix {
  int64_t rows, cols, ld;
  bool transposed;  // relative to what the product wants
  int64_t batch_stride = 0;
  int64_t offset = 0;  // elements from the start of the buffer
};

// A batched product, repeated over loops that its batch cannot express. Our results are row
// major, so it computes the transposed product: (A B)^T = B^T A^T.
struct MatmulSpec {
  DType type, result;
  int64_t m, n, k;
  Matrix first, second, out;  // B^T, A^T and the result
  int64_t batch = 1;
  struct Loop {
    int64_t size, first, second, out;
  };
  std::vector<Loop> loops;

  Epilogue epilogue = Epilogue::None;
  int64_t third_offset = 0, third_ld = 0;  // of the epilogue's operand
  int64_t factors_offset = 0;
  int factors_slot = 0;  // among the buffers of a launch; 0: both are 1
  int result_slot = 2;
  int sum_slot = 0;  // of what precedes the GELU; 0 when nobody wants it

  int64_t calls() const;
  // Equal for equal calls: "f32: 8 x 4 x 2, batch 1, 1 calls".
  std::string describe() const;
};

// Nothing when cuBLASLt cannot compute it in kMostCalls calls; `why` (may be null) says why not.
std::optional<MatmulSpec> matmul_spec(const LibraryCall& call, std::string* why);

}  // namespace tinyshard::cuda
