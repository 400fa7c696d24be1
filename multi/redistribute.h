// Changing how a value lies on a mesh. The only place that makes communication.
//
//   Partial -> Replicate  all-reduce        Shard(i) -> Shard(j)   all-to-all
//   Partial -> Shard      reduce-scatter    Replicate -> Shard     a slice, nothing moves
//   Shard -> Replicate    all-gather        one device -> mesh     each device copies its part
//   Replicate -> Partial(sum)   zeros on all devices but the first, nothing moves
//   Shard(i) -> Partial(sum)    zeros around the part, nothing moves
//   mesh -> other mesh    point to point (multi/change_mesh.h)
//   two axes of one size, placed as the other is to be     point to point (multi/relocation.h)
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "multi/gather_on_use.h"
#include "multi/mesh.h"

namespace tinyshard {

struct Apart;  // multi/strategies/joined.h

// A value as one device sees it. Constants and iotas have no mesh: they are everywhere.
struct LocalValue {
  UOp local;
  std::optional<Mesh> mesh;
  std::vector<Placement> place;
  OriginId origin = 0;  // of the op that made it, or that left it a pending reduction
  std::shared_ptr<const Apart> apart = {};  // as it lay before a reshape joined a divided dim
  // Set for a parameter, and for values computed from parameters alone: ops that need the whole
  // value gather it. A request for a placement gets that of a usual value.
  const GatherOnUse* gather_on_use = nullptr;
};

// `global` is the shape of the whole value. UserError where there is no way: from Replicate or Shard
// to Partial of another reduction than a sum.
LocalValue redistribute(LocalValue value, DimSpan global, const Mesh& mesh,
                        const std::vector<Placement>& wanted);

// Returns whether x has the elements of its source, each once, in another shape or order: a Reshape
// or a Permute.
bool rearranges(const UOp& x);
// The value of which x is the last of such rearrangements; x itself where it is none.
const UOp& before_rearranging(const UOp& x);

// `local` without the cast to a wider type that came last, views left out; itself where there is
// none. In the narrow type it goes elsewhere: bf16 that are gathered are cast to f32 where they
// arrive, and so are masks to numbers.
UOp before_widening(const UOp& local);

// Where `dim` does not divide among its parts, sets the padding to `fill`, a constant of one
// element.
UOp with_padding_filled(const LocalValue& value, DimSpan global, int dim, const UOp& fill);
// The same with all rows filled but [low, high) of the whole.
UOp with_others_filled(const LocalValue& value, DimSpan global, int dim, int64_t low, int64_t high,
                       const UOp& fill);

// Parts into which placements divide `dim`.
int64_t parts_of(const LocalValue& value, int dim);

}  // namespace tinyshard
