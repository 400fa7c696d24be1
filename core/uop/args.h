// The arguments of nodes by name. A node keeps its argument as a list of integers, which makes
// interning, hashing and printing one thing for all ops; everything else reads it from here and
// packs it here, so that the places of the integers are known to this file, to shape.cpp and, of what only
// multi/ makes, to multi/collective.h alone. A UOp has no arg(i).
//
//   const ReduceArg sum = reduce_arg(*x);              // {ReduceOp::Sum, axes {1}}
//   UOp::make(Op::Fold, type, src, to_ints(FoldArg{ReduceOp::Sum, true}));
//
// Convolutions and attention have theirs in uop.h; Reshape, Expand {dims...}, Permute {order...},
// Flip {axes...} and Iota {n} are read as the lists that they are.
#pragma once
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

// Const {bits, dims...}: of floats those of a double, of integers the value in 64 bits.
inline int64_t const_bits(const Node& constant) { return constant.arg()[0]; }

inline int64_t buffer_number(const Node& buffer) { return buffer.arg()[0]; }

// Pad and Shrink {lo0, hi0, lo1, hi1...}: elements added below and above a dim, or the ends of what
// stays of it.
struct BoundsArg {
  DimSpan ints;
  int64_t low(size_t dim) const { return ints[2 * dim]; }
  int64_t high(size_t dim) const { return ints[2 * dim + 1]; }
};
inline BoundsArg bounds_arg(const Node& x) { return {x.arg()}; }

// ShardSlice: this device's part of `dim`, by its coordinate on a mesh axis of `parts` devices.
struct ShardSliceArg {
  int64_t dim, mesh_axis, parts;
};
inline ShardSliceArg shard_slice_arg(const Node& x) { return {x.arg()[0], x.arg()[1], x.arg()[2]}; }
inline Dims to_ints(const ShardSliceArg& a) { return {a.dim, a.mesh_axis, a.parts}; }

// Unfold and UnfoldBackward: windows of `kernel` elements of the last dim, `dilation` apart, a window
// every `stride`. `size`: of that dim, where windows are summed.
struct UnfoldArg {
  int64_t kernel, stride, dilation, size = 0;
};
inline UnfoldArg unfold_arg(const Node& x) {
  return {x.arg()[0], x.arg()[1], x.arg()[2], x.arg()[3]};
}
inline Dims to_ints(const UnfoldArg& a) { return {a.kernel, a.stride, a.dilation, a.size}; }

// CopyIn, of a value that lies on one device, onto a mesh: the parts that each device takes, one
// after the other. Between meshes: multi/relocation.h.
inline std::vector<ShardSliceArg> copied_parts(const Node& x) {
  std::vector<ShardSliceArg> parts;
  if (x.arguments > 0 && x.arg()[0] < 0) return parts;
  for (DimSpan rest = x.arg(); rest.size() >= 3; rest = rest.subspan(3))
    parts.push_back({rest[0], rest[1], rest[2]});
  return parts;
}

// CopyIn {kFromItsPlace}: each device takes what the one in its place has, on a mesh of the same axes
// whose devices are of the same processes.
inline constexpr int64_t kFromItsPlace = -1;
inline bool copies_place_by_place(const Node& x) {
  return x.op == Op::CopyIn && x.arguments == 1 && x.arg()[0] == kFromItsPlace;
}

// CopyIn {kFromPlaces, places..}: a device takes what those at these places of the source's mesh have,
// one after the other along a first dim. All of them are of its process.
inline constexpr int64_t kFromPlaces = -2;
inline bool copies_from_places(const Node& x) {
  return x.op == Op::CopyIn && x.arguments > 1 && x.arg()[0] == kFromPlaces;
}

// DeviceCoordinate: on that mesh axis, of `size` devices.
struct CoordinateArg {
  int64_t mesh_axis, size;
};
inline CoordinateArg coordinate_arg(const Node& x) { return {x.arg()[0], x.arg()[1]}; }
inline Dims to_ints(const CoordinateArg& a) { return {a.mesh_axis, a.size}; }

struct ReduceArg {
  ReduceOp op;
  DimSpan axes;
};
inline ReduceArg reduce_arg(const Node& x) { return {ReduceOp(x.arg()[0]), x.arg().subspan(1)}; }

inline int64_t gather_axis(const Node& gather) { return gather.arg()[0]; }

// Tells whether a Gather reads its source by the order of this source itself (core/uop/sort_keys.h)
// and which one: then the result is known without the order. In global graphs only.
enum class Sorting : uint8_t { None, Rising, Falling };
inline Sorting gather_sorting(const Node& gather) {
  return gather.arguments > 1 ? Sorting(gather.arg()[1]) : Sorting::None;
}
inline Dims sorting_gather(int64_t axis, Sorting sorting) { return {axis, int64_t(sorting)}; }

// ScatterAdd: into `size` places along `axis`. Where several elements meet they are reduced: by
// Sum, which starts from zeros or a base, unless the node names another reduction, which starts
// from that one's identity. One that writes (from passes only) puts the last of them over what its
// base has there. It names Max, the reduction of the numbers of the elements, so that who does not
// know of writes does not take it for a sum.
struct ScatterArg {
  int64_t axis, size;
  ReduceOp op = ReduceOp::Sum;
  bool writes = false;
};
inline ScatterArg scatter_arg(const Node& x) {
  return {x.arg()[0], x.arg()[1], x.arguments > 2 ? ReduceOp(x.arg()[2]) : ReduceOp::Sum,
          x.arguments > 3};
}
inline Dims writing_scatter(int64_t axis, int64_t size) {
  return {axis, size, int64_t(ReduceOp::Max), 1};
}

inline int64_t sorted_places(const Node& sort) { return sort.arg()[0]; }  // of each row

// Dot: the number of dims in front that both operands share. See region_of() for the rest.
inline int64_t dot_batch(const Node& dot) { return dot.arg()[0]; }

inline int64_t identity_number(const Node& identity) { return identity.arg()[0]; }

// --- in kernels ----------------------------------------------------------------------------------

struct RangeArg {
  int64_t id, size;
  RangeKind kind;
};
inline RangeArg range_arg(const Node& range) {
  return {range.arg()[0], range.arg()[1], RangeKind(range.arg()[2])};
}

inline int64_t param_slot(const Node& param) { return param.arg()[0]; }
// Returns the number of the Param that a Load or Store goes to.
inline int64_t slot_of(const Node& access) { return param_slot(*access.src()[0]); }

// Fold: whether it adds products unrounded, as a fused multiply-add does.
struct FoldArg {
  ReduceOp op;
  bool adds_products = false;
};
inline FoldArg fold_arg(const Node& x) {
  return {ReduceOp(x.arg()[0]), x.arguments > 1 && x.arg()[1] != 0};
}
inline Dims to_ints(const FoldArg& a) { return {int64_t(a.op), a.adds_products}; }

}  // namespace tinyshard
