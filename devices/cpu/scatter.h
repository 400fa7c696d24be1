// Scatter-add: the gradient of an embedding or a gather, and other reductions of what meets at a
// place; and plain writes. Deterministic without atomics: every destination element is summed or
// written by one thread, in the order of the source rows.
#pragma once
#include <cstdint>

#include "core/dtype/dtype.h"
#include "core/uop/op.h"

namespace tinyshard {

class ThreadPool;

// out[o][index[o][r][i]][i] += src[o][r][i] for all o < outer, r < rows_in, i < inner.
// out is [outer, rows_out, inner] and src is [outer, rows_in, inner], both contiguous.
struct ScatterSpec {
  DType dtype = DType::F32;     // f64 f32 f16 bf16 (16-bit floats sum in f32) or any integer
  ReduceOp op = ReduceOp::Sum;  // others are of bools, too
  bool writes = false;          // instead of op: the last row that has a place is what lies there
  DType index_dtype = DType::I32;  // I32 or I64
  int64_t outer = 1, rows_in = 0, rows_out = 0, inner = 1;
  // Strides of the index in elements; an embedding has index_inner = 0.
  int64_t index_outer = 0, index_row = 1, index_inner = 0;

  bool operator==(const ScatterSpec&) const = default;
};

bool scatter_supports(const ScatterSpec& spec);

// out starts as `base` (same shape as out; may be out itself), or as the identity of the reduction
// when base is null. A maximum or minimum is NaN where one of its elements is. A row
// whose index lies outside of [0, rows_out) is added nowhere. Throws UserError for what is
// not supported.
void scatter_add(const ScatterSpec& spec, const void* base, const void* index, const void* src,
                 void* out, ThreadPool& pool);

}  // namespace tinyshard
