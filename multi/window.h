// Windows of a sharded dim: each device receives the rows that it lacks from the few that have
// them, point to point, and the result is sharded again. What pads, slices, flips, rolls,
// concatenates or reads beyond the edges of a part is a window.
//
//   f32[10] on 4 devices, 3 rows each:        0 1 2 | 3 4 5 | 6 7 8 | 9
//   x[2:9] is a window of 2 rows per device, which starts at row 2 * d + 2; rows end before 9:
//                                             2 3   | 4 5   | 6 7   | 8 .
//   device 1 keeps 4 and 5 and sends row 3 to device 0; device 2 keeps 6 and 7 and sends row 8 to
//   device 3.
//   With a halo of one row on each side, it is the window of 5 rows at 3 * d - 1:
//                                       . 0 1 2 3 | 2 3 4 5 6 | 5 6 7 8 9 | 8 9 . . .
#pragma once
#include "multi/redistribute.h"

namespace tinyshard {

// Device d wants the rows [step * d + start, step * d + start + rows) of the dim, which may reach
// beyond its ends. Of them only [low, high) count; the others become 0. step is not 0.
struct Window {
  int64_t step, start, rows;
  int64_t low, high;
};

// The part of a window that each device has, in place of its part of `dim`, which one mesh axis
// splits, into parts of any size. A device sends only rows that others want, and itself nothing.
UOp window(const LocalValue& value, int dim, const Window& wanted);

// The adjoint of a window. Device d has terms of the rows that the window names, in place of its part
// of `dim`: each row goes to the device of the part of `part` rows that it is in, and what it gets
// there from all devices is added up. Rows beyond the first part and the last are dropped, and others
// outside of [low, high) may be. In halves of 1 and 1, with a halo of one row on each side:
//
//   device 0 has terms of rows -1 0 1, device 1 of rows 0 1 2: row 0 and row 1 cross over, and are
//   added to those that stay
UOp window_added(const LocalValue& terms, int dim, const Window& window, int64_t part);
// The most rows that a device sends others for that.
int64_t rows_added(int64_t part, int64_t devices, const Window& window);

// The most rows that a device sends others for a window of a dim in that many parts of `part` rows.
int64_t rows_sent(int64_t part, int64_t devices, const Window& window);

// Rows [start, start + rows) of a dim that is whole on each device, 0 outside of [low, high).
UOp rows_of(const UOp& x, int dim, int64_t start, int64_t rows, int64_t low, int64_t high);

// Windows that begin every `stride` rows and reach so many rows further: those that hold any of the
// rows [shift, shift + rows).
//
//   reading(4, 1, 2, 2): rows 1 to 4 are in windows 0 (0 1 2), 1 (2 3 4) and 2 (4 5 6), which begin
//   one row before the first of them and are 7 rows long together
struct Reading {
  int64_t first, windows, before, length;
};
Reading reading(int64_t rows, int64_t shift, int64_t reach, int64_t stride);

inline int64_t rounded_up(int64_t n, int64_t to) {
  return n < 0 ? n / to * to : (n + to - 1) / to * to;
}
inline int64_t rounded_down(int64_t n, int64_t to) { return -rounded_up(-n, to); }

// The mesh axis that splits `dim`; -1 where none does, the outermost one of several.
int axis_of(const LocalValue& value, int dim);

}  // namespace tinyshard
