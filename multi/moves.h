// The steps by which redistribute() changes how a value lies, as data: it follows them, and
// strategies compare what they would send before anything is built.
//
//   f32[8, 8] on a mesh of 4, Shard(0) -> Shard(1)     one all-to-all, 3 of 4 parts of [2, 8]: 48 B
//   Shard(0) -> Replicate                              one all-gather, [2, 8] to 3 others: 192 B
//   of 2 x 2, {Shard(0), Shard(1)} -> {Shard(1), Shard(0)}   device (0, 1) gives its part, [4, 4], to
//                                                      device (1, 0) and gets that one's: 64 B
#pragma once
#include <optional>
#include <vector>

#include "core/runtime/communicator.h"
#include "multi/link_model.h"
#include "multi/redistribute.h"

namespace tinyshard {

// Along one mesh axis the value becomes `to`, by a collective, or by a slice or as a term of a sum,
// which send nothing; or it changes placements with another axis, which becomes what this one was.
struct Move {
  int axis = 0;
  std::optional<CollectiveOp> op;
  Placement to;
  int swapped_with = -1;
};

// Returns the moves in the order in which they are done. A value has no way to Partial of another
// reduction than a sum: such an axis is left out.
std::vector<Move> moves_between(const Mesh& mesh, const std::vector<Placement>& from,
                                const std::vector<Placement>& wanted);

// Bytes that each device sends (ring algorithms) to bring a value of that type from one placement
// to another on its mesh.
double bytes_moved(DType type, DimSpan global, const Mesh& mesh, const std::vector<Placement>& from,
                   const std::vector<Placement>& wanted);
// Returns the seconds that this takes.
double seconds_moved(DType type, DimSpan global, const Mesh& mesh,
                     const std::vector<Placement>& from, const std::vector<Placement>& wanted,
                     LinkModel& links);

}  // namespace tinyshard
