// Changing how a value lies on a mesh. The only place that makes communication.
//
//   Partial -> Replicate  all-reduce        Shard(i) -> Shard(j)   all-to-all
//   Partial -> Shard      reduce-scatter    Replicate -> Shard     a slice, nothing moves
//   Shard -> Replicate    all-gather        one device -> mesh     each device copies its part
#pragma once
#include <optional>
#include <vector>

#include "multi/mesh.h"

namespace tinyshard {

// A value as one device sees it. Constants and iotas have no mesh: they are everywhere.
struct LocalValue {
  UOp local;
  std::optional<Mesh> mesh;
  std::vector<Placement> place;
};

// `global` is the shape of the whole value. UserError for what cannot be: Partial out of the blue,
// or a value of one mesh wanted on an unrelated one.
LocalValue redistribute(LocalValue value, DimSpan global, const Mesh& mesh,
                        const std::vector<Placement>& wanted);

// Where `dim` does not divide among its parts, sets the padding to `fill`, a constant of one
// element.
UOp with_padding_filled(const LocalValue& value, DimSpan global, int dim, const UOp& fill);

// Parts into which placements divide `dim`.
int64_t parts_of(const LocalValue& value, int dim);

}  // namespace tinyshard
