// Values that each device of a mesh has for itself: those of the code of shard_map
// (core/tensor/shard_map.h). In the graph that gradients and the sharding rewrite read, such a value
// has the shape that one device sees, and is its own along some axes of its mesh: along these the
// devices hold different values, along the others the same.
//
//   x [8, 4] over "d":2      an ordinary value, one for all devices
//   part_of(x, dim 0)        [4, 4], own along "d": rows 0 to 3 on one device, 4 to 7 on the other
//   part + w                 [4, 4], own along "d", be w an ordinary value that both have
//   all_reduced(part + w)    [4, 4], an ordinary value again
//   whole_of(part, dim 0)    [8, 4], an ordinary value that lies as Shard(0)
//
// What follows from the axes alone: an op of which a source is own runs on what each device has, and
// sources that are not are brought whole to all devices. The gradient of such a source is the sum of
// what the devices give it (core/passes/gradient.cpp).
//
// The nodes are ShardSlice {dim, mesh axis, parts}, with -parts for whole_of, and Collective, with -1
// - axis for the mesh axis; both have their mesh as payload. The negative numbers tell them from the
// nodes that the sharding rewrite makes, which replaces all of them.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/uop/graph.h"
#include "core/uop/node_map.h"
#include "multi/collective.h"
#include "multi/mesh.h"

namespace tinyshard {

// Along which axes of its mesh a value is own, as bits; 0: an ordinary value, without a mesh.
struct OwnAxes {
  uint64_t axes = 0;
  std::shared_ptr<const void> mesh;
  bool along(int axis) const { return axes >> axis & 1; }
};

// Keeps no reference: graphs must outlive it.
class OwnAxesOf {
 public:
  // The reference is good until the next question. UserError where values of different meshes meet.
  const OwnAxes& operator()(const UOp& x);

 private:
  OwnAxes derived(const UOp& x) const;
  NodeMap<OwnAxes> known_;
};

// Returns whether a graph in front of the rewrite has any of the nodes below.
bool has_own_values(const Graph& graph);

// This device's part of an ordinary value along `axis`, which divides the dim.
UOp part_of(const UOp& x, const Mesh& mesh, int axis, int dim);
// The value whose parts these are.
UOp whole_of(const UOp& x, const Mesh& mesh, int axis, int dim);
struct PartArg {
  int dim, axis;
  int64_t parts;
  bool whole;  // whole_of
};
std::optional<PartArg> part_arg(const Node& x);  // nothing where x is neither

// Reads a Collective that is one of these; nothing where x is none.
std::optional<CollectiveArg> own_collective_arg(const Node& x);

// [devices on the axis, ...]: row i is what device i has.
UOp rows_of_all(const UOp& x, const Mesh& mesh, int axis);

UOp all_reduced(const UOp& x, const Mesh& mesh, int axis, ReduceOp op);
// x [devices on the axis, ...] reduced, of which device i gets row i.
UOp reduce_scattered(const UOp& x, const Mesh& mesh, int axis, ReduceOp op);
// x reduced, of which device i gets part i along `dim`, which the axis divides.
UOp part_of_sum(const UOp& x, const Mesh& mesh, int axis, int dim, ReduceOp op);
// x [devices on the axis, ...]: row i goes to device i; row i of the result came from device i.
UOp swapped(const UOp& x, const Mesh& mesh, int axis);
// x goes from device to device, as pairs (from, to) say, of which no two have the same sender or
// the same receiver. Who receives nothing gets zeros.
UOp sent(const UOp& x, const Mesh& mesh, int axis, std::vector<std::pair<int64_t, int64_t>> pairs);
// The place of a device along the axis, i64[1].
UOp place_along(const Mesh& mesh, int axis);

// The gradient of what y, an AllToAll of this file, has sent: g, back on the senders.
UOp sent_back(const UOp& y, const UOp& g);

}  // namespace tinyshard
