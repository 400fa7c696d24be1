// Pads and shrinks as a movement of rows: which row of the source each row of the result is.
#pragma once
#include <cstdint>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

// Row i of a result is row i + shift of its source, and 0 outside of [low, high).
struct Rows {
  int64_t size, shift = 0, low = INT64_MIN, high = INT64_MAX;
};

// Returns how each dim comes from `source`, which it finds below the pads and shrinks up to x.
std::vector<Rows> rows_through(const UOp& x, UOp& source);

inline bool all_there(const Rows& rows, int64_t size) {
  return rows.shift == 0 && rows.size == size && rows.low == 0 && rows.high == size;
}

}  // namespace tinyshard
