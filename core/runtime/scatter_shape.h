// A scatter on a GPU, with all that its kernel depends on: plain data, so that devices and the code
// generator see it alike.
#pragma once
#include <cstdint>
#include <optional>

#include "core/dtype/dtype.h"

namespace tinyshard {

// out[o][index[o][r][i]][i] += src[o][r][i], on a result that starts as `base` or as zeros. What an
// index out of range names is added nowhere. One that writes puts the last of the rows there instead.
struct ScatterShape {
  DType dtype = DType::F32;        // f64, f32, f16, bf16 (these two sum in f32) or any integer
  DType index_dtype = DType::I32;  // i32 or i64
  std::optional<DType> base;       // that of the result, or a float of 16 bits for f32
  bool writes = false;             // then `dtype` is an unsigned integer, and there is a base
  bool in_place = false;           // the result is the base: only rows that are named are touched
  int64_t outer = 1, rows_in = 0, rows_out = 0, inner = 1;
  int64_t index_offset = 0, index_outer = 0, index_row = 1, index_inner = 0;  // in elements
};

}  // namespace tinyshard
