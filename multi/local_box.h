// The part of a value that a device holds, in the coordinates of the whole.
//
// Axes that split one dim nest, and each rounds up. f32[5] on a mesh of 2 x 2, {Shard(0),
// Shard(0)}: the outer axis makes parts of 3 and the inner one parts of 2, so the devices hold
// [0, 2), [2, 3), [3, 5) and nothing, each in memory for 2 elements.
#pragma once
#include "multi/mesh.h"

namespace tinyshard {

struct LocalBox {
  Dims begin, size;  // without padding; a size may be 0
  bool operator==(const LocalBox&) const = default;
};
// The box of the device at `position` of the sharding's mesh. Partial counts as replicated.
LocalBox local_box(const Sharding& where, DimSpan global, int64_t position);

}  // namespace tinyshard
