// Sizes are kept twice: with padding, as the next axis divides that,
// and of the elements that are there.
#include "multi/local_box.h"

#include <algorithm>

namespace tinyshard {

LocalBox local_box(const Sharding& where, DimSpan global, int64_t position) {
  LocalBox box{Dims(global.size()), Dims(global.begin(), global.end())};
  const std::vector<int64_t> coordinates = where.mesh.coordinates(position);
  Dims room = box.size;  // of the parts so far, padding counted
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard()) continue;
    const auto d = static_cast<size_t>(where.placements[a].dim);
    const int64_t parts = where.mesh.axes()[a].size;
    room[d] = (room[d] + parts - 1) / parts;
    const int64_t skipped = std::min(coordinates[a] * room[d], box.size[d]);
    box.begin[d] += skipped;
    box.size[d] = std::min(room[d], box.size[d] - skipped);
  }
  return box;
}

}  // namespace tinyshard
