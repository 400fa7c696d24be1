// Indices that are known when the graph is built: computed from places and constants alone, as those
// of interpolate are, and the same in all dims but one. Devices that look up a dim along which both
// the result and what it is read from are split then receive the rows that their part names:
//
//   f32[8 rows] on 4 devices, to 16 rows by index o / 2: part 1, rows 4 to 7, reads rows 2 and 3
//   by index min(o / 2 + 1, 7): rows 3 and 4, and row 4 comes from device 2
//
// The window that all devices use reaches as far as any of them needs (multi/window.h).
#pragma once
#include <optional>
#include <vector>

#include "multi/window.h"

namespace tinyshard {

// The places that an index names along `axis`; nothing where they depend on values, or on other dims.
std::optional<std::vector<int64_t>> known_line(const UOp& index, int axis);

// The window of `rows` rows, split over so many devices, that each reads for its part of the line.
// The step of the window is the rows of a part. Nothing where parts are empty.
std::optional<Window> window_of_line(const std::vector<int64_t>& line, int64_t rows,
                                     int64_t devices);

// An index into all rows as one into the window of a device, of which `axis` of the mesh says which.
UOp index_into_window(const UOp& index, const Window& window, const Mesh& mesh, int axis);

}  // namespace tinyshard
