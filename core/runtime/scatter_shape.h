// A scatter on a GPU, with all that its kernel depends on: plain data, so that devices and the code
// generator see it alike.
#pragma once
#include <cstdint>
#include <optional>

#include "core/dtype/dtype.h"
#include "core/runtime/sort_shape.h"
#include "core/runtime/target.h"
#include "core/uop/op.h"

namespace tinyshard {

// out[o][index[o][r][i]][i] += src[o][r][i], on a result that starts as `base` or as the identity of the
// reduction. What an index out of range names is added nowhere. One that writes puts the last of the rows there instead.
struct ScatterShape {
  DType dtype = DType::F32;        // f64, f32, f16, bf16 (these two sum in f32) or any integer
  DType index_dtype = DType::I32;  // i32 or i64
  std::optional<DType> base;       // that of the result, or a float of 16 bits for f32
  ReduceOp op = ReduceOp::Sum;
  bool writes = false;    // then `dtype` is an unsigned integer, and there is a base
  bool in_place = false;  // the result is the base: only rows that are named are touched
  int64_t outer = 1, rows_in = 0, rows_out = 0, inner = 1;
  int64_t index_offset = 0, index_outer = 0, index_row = 1, index_inner = 0;  // in elements

  // Lists of indices that differ: columns may share one.
  int64_t lists() const { return index_inner == 0 || inner == 1 ? outer : outer * inner; }
  // The sort of the rows of each list by their places, rows_out for those that are added nowhere.
  SortShape sort() const {
    SortShape s{.key = DType::U32, .rows = lists(), .n = rows_in, .k = rows_in};
    s.bytes = 1;
    while (rows_out >> (8 * s.bytes) != 0) ++s.bytes;
    return s;
  }
  // Sorts of long lists move the keys.
  bool keys_come_sorted() const { return sort().is_long(); }
};

// The kernels of a scatter whose rows are sorted by their places in between. Keys are u32 [lists, rows_in], those
// of rows that are added nowhere rows_out; their order is i32. Bounds, i32 [lists, rows_out, 2], say where in
// the order the rows of a place begin and end.
struct SortedScatter {
  ObjectCode keys;     // index, keys
  ObjectCode clear;    // bounds
  ObjectCode mark;     // keys, or those that the sort moved, order, bounds
  ObjectCode combine;  // bounds, order, source, base where there is one, result
};

}  // namespace tinyshard
