// Groups are an axis of their own on a mesh of the same devices: values that only this file looks at
// go there and back, which is a copy on each device.
#include "multi/strategies/groups.h"

#include <fmt/format.h>

#include "core/rewrite/fold.h"
#include "multi/device_number.h"
#include "multi/relocation.h"
#include "multi/wire.h"

namespace tinyshard {
namespace {

// "data" of eight devices in pairs is "data/2" of four, the pair, and "data%2" of two.
Mesh in_groups(const Mesh& mesh, size_t axis, int64_t size) {
  if (size == 1) return mesh;
  std::vector<MeshAxis> axes = mesh.axes();
  const MeshAxis whole = axes[axis];
  axes[axis] = {fmt::format("{}/{}", whole.name, size), whole.size / size};
  axes.insert(axes.begin() + long(axis) + 1, {fmt::format("{}%{}", whole.name, size), size});
  return {axes, mesh.devices()};
}

}  // namespace

Groups::Groups(const Mesh& mesh, size_t axis, int64_t size)
    : mesh_(mesh),
      axis_(axis),
      size_(size),
      count_(mesh.axes()[axis].size / size),
      finer_(in_groups(mesh, axis, size)) {}

std::vector<int64_t> Groups::sizes(int64_t devices) {
  std::vector<int64_t> all;
  for (int64_t size = 1; size < devices; ++size) {
    if (devices % size == 0) all.push_back(size);
  }
  return all;
}

Groups::Places Groups::finer(const Places& place, int dims) const {
  Places all = place;
  if (size_ > 1) all.insert(all.begin() + long(axis_) + 1, place[axis_]);
  for (Placement& p : all) {
    if (p.is_shard()) p.dim += dims;
  }
  return all;
}

UOp Groups::entries(const UOp& x, const Places& place, int dim, const UOp* fill,
                    LocalValues& values) const {
  const UOp& one = repeated(x);
  auto repeats = [&](int d) { return one.shape()[size_t(d)] != x.shape()[size_t(d)]; };
  Places narrow = place;
  for (Placement& p : narrow) {
    if (p.is_shard() && repeats(p.dim)) p = Replicate;
  }
  Dims whole = Sharding{mesh_, place}.local_shape(x.shape());
  whole[size_t(dim)] *= size_;
  LocalValue v = values.brought(one, mesh_, narrow);
  if (fill && !repeats(dim)) v.local = with_padding_filled(v, one.shape(), dim, *fill);
  if (size_ > 1 && is_const(v.local)) return reshaped_const(v.local, whole);
  if (size_ == 1) return expand(v.local, whole);
  UOp all = relocated(before_widening(v.local), mesh_, finer_, false);
  if (!repeats(dim)) {
    Dims even(one.shape().begin(), one.shape().end());
    even[size_t(dim)] = all.shape()[size_t(dim)] * size_ * count_;
    Places parts = finer(narrow, 0), together = parts;
    together[axis_ + 1] = Replicate;
    all = redistribute({all, finer_, parts, v.origin}, even, finer_, together).local;
  }
  return expand(cast(all, x.dtype()), whole);
}

UOp Groups::index_into_made(const UOp& index, int64_t places) const {
  // A library reads an index that is the same for whole rows once for each row.
  if (index.op() == Op::Expand) return expand(index_into_made(index.src(0), places), index.shape());
  auto number = [&](int64_t n) { return const_int(DType::I64, n, index.shape()); };
  const UOp wide = cast(index, DType::I64);
  UOp mine = binary(Op::And, unary(Op::Not, binary(Op::CmpLt, wide, number(0))),
                    binary(Op::CmpLt, wide, number(places)));
  const UOp owner = binary(Op::IDiv, wide, number(part(places)));
  UOp here = wide;
  if (size_ > 1) {
    const UOp me = DeviceNumber::coordinate(finer_, int(axis_) + 1).node();
    const Dims ones(index.shape().size(), 1);
    mine = binary(Op::And, mine,
                  binary(Op::CmpEq, binary(Op::Mod, owner, number(size_)),
                         expand(reshape(me, ones), index.shape())));
    here = binary(Op::Add,
                  binary(Op::Mul, binary(Op::IDiv, owner, number(size_)), number(part(places))),
                  binary(Op::Mod, wide, number(part(places))));
  }
  return where(mine, cast(here, index.dtype()), const_int(index.dtype(), -1, index.shape()));
}

CollectiveOp Groups::combining(DType type, ReduceOp op) {
  return itemsize(wire_type(type, op)) > itemsize(type) ? CollectiveOp::AllToAll
                                                        : CollectiveOp::ReduceScatter;
}

// The places that a device makes are a dim, which the groups' axis divides among owners. The value
// gets one or two dims in front, by which devices differ: [groups, ..] for the group that sends, if
// nothing is reduced, and [.., size, ..] for the device within its group, if a group has several.
UOp Groups::at_owners(const UOp& made, const Placement& lying, const Places& placed, DimSpan shape,
                      int dim) const {
  const int senders = lying.is_shard() ? 1 : 0, front = senders + (size_ > 1 ? 1 : 0);
  Places from = finer(placed, front), to = from;
  Dims whole(shape.begin(), shape.end());
  whole[size_t(dim)] = made.shape()[size_t(dim)];
  if (size_ > 1) {
    whole.insert(whole.begin(), size_);
    from[axis_ + 1] = to[axis_ + 1] = Shard(senders);
  }
  if (senders > 0) whole.insert(whole.begin(), count_);
  from[axis_] = lying, to[axis_] = Shard(dim + front);
  Dims local(made.shape().begin(), made.shape().end());
  local.insert(local.begin(), size_t(front), 1);
  const UOp all =
      redistribute({reshape(made, local), finer_, from, current_origin()}, whole, finer_, to).local;
  local.assign(all.shape().begin() + front, all.shape().end());
  if (senders > 0) local.insert(local.begin(), count_);
  return reshape(all, local);
}

UOp Groups::for_owners(const UOp& made, const Places& placed, DimSpan shape, int dim) const {
  return at_owners(made, Shard(0), placed, shape, dim);
}

LocalValue Groups::combined(const UOp& made, ReduceOp op, const Places& placed, DimSpan shape,
                            int dim) const {
  UOp owned;
  if (combining(made.dtype(), op) == CollectiveOp::AllToAll) {
    const UOp all = for_owners(made, placed, shape, dim);
    const Dims local(all.shape().begin() + 1, all.shape().end());
    owned = reshape(reduce(op, all, Dims{0}), local);
  } else {
    owned = at_owners(made, Partial(op), placed, shape, dim);
  }
  Places lying = placed;
  lying[axis_] = Shard(dim);
  return {back(owned), mesh_, lying, current_origin()};
}

UOp Groups::back(const UOp& x) const { return size_ > 1 ? relocated(x, finer_, mesh_, false) : x; }

double Groups::seconds_of_entries(double bytes, LinkModel& links) const {
  if (size_ == 1) return 0;
  return links.seconds_of(CollectiveOp::AllGather, bytes * double(size_ - 1), finer_,
                          int(axis_) + 1);
}

double Groups::seconds_of_made(CollectiveOp op, double bytes, LinkModel& links) const {
  return links.seconds_of(op, bytes * double(count_ - 1) / double(count_), finer_, int(axis_));
}

}  // namespace tinyshard
