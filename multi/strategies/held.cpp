// A place that a device holds becomes its place in the part, every other one -1, which lookups
// answer with zeros. Where dims were joined, the number of a place is taken apart by division, each
// digit is moved into the part, and the digits are put together again with the part's sizes:
//
//   [2, 8 over 4 devices] as 16 places: place 11 is (1, 3), on device 1 (1, 1) of [2, 2]: place 3
#include "multi/strategies/held.h"

namespace tinyshard {
namespace {

UOp i64(int64_t value) { return const_int(DType::I64, value, Dims{1}); }

UOp smaller(const UOp& a, const UOp& b) { return where(binary(Op::CmpLt, a, b), a, b); }

// This device's place along a mesh axis: what it holds of 0.. of as many places.
UOp coordinate(int64_t axis, int64_t size) {
  UOp places = UOp::make(Op::Iota, DType::I64, {}, Dims{size});
  return UOp::make(Op::ShardSlice, DType::I64, {places}, Dims{0, axis, size});
}

UOp within(const UOp& wide, const UOp& low, const UOp& high) {
  return binary(Op::And, unary(Op::Not, binary(Op::CmpLt, wide, low)),
                binary(Op::CmpLt, wide, high));
}
// A value of one element in each place of `shape`.
UOp everywhere(const UOp& x, DimSpan shape) {
  return expand(reshape(x, Dims(shape.size(), 1)), shape);
}

}  // namespace

// Axis by axis each part starts where the parts before it end, and ends no later than what it is a
// part of: 7 places over 2 x 2 are [0, 2) [2, 4) and [4, 6) [6, 7).
Held held_places(const LocalValue& v, DimSpan global, int dim) {
  int64_t size = global[size_t(dim)];
  Held held{i64(0), i64(size)};
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (!(v.place[a] == Shard(dim))) continue;
    const int64_t parts = v.mesh->axes()[a].size;
    size = (size + parts - 1) / parts;
    UOp before = binary(Op::Mul, coordinate(int64_t(a), parts), i64(size));
    held.low = binary(Op::Add, held.low, before);
    held.high = smaller(binary(Op::Add, held.low, i64(size)), held.high);
  }
  return held;
}

UOp index_into_part(const UOp& index, const LocalValue& v, DimSpan global, int dim) {
  // A library reads an index that is the same for whole rows once for each row.
  if (index.op() == Op::Expand)
    return expand(index_into_part(index.src(0), v, global, dim), index.shape());
  const Held held = held_places(v, global, dim);
  UOp wide = cast(index, DType::I64), low = everywhere(held.low, index.shape());
  UOp inside = within(wide, low, everywhere(held.high, index.shape()));
  UOp here = cast(binary(Op::Sub, wide, low), index.dtype());
  return where(inside, here, const_int(index.dtype(), -1, index.shape()));
}

UOp held_elsewhere(const UOp& index, const LocalValue& v, DimSpan global, int dim) {
  if (index.op() == Op::Expand)
    return expand(held_elsewhere(index.src(0), v, global, dim), index.shape());
  const Held held = held_places(v, global, dim);
  UOp wide = cast(index, DType::I64);
  UOp known = within(wide, everywhere(i64(0), index.shape()),
                     everywhere(i64(global[size_t(dim)]), index.shape()));
  UOp here =
      within(wide, everywhere(held.low, index.shape()), everywhere(held.high, index.shape()));
  return binary(Op::And, known, unary(Op::Not, here));
}

namespace {

// Bool: whether each place is one of the whole value, and whether it is also one of the part; and
// which one it is there, if it is.
struct Counted {
  UOp known, inside, place;
};

Counted counted(const UOp& index, const LocalValue& v, DimSpan global, Joined dims) {
  const Dims local = Sharding{*v.mesh, v.place}.local_shape(global);
  auto all = [&](int64_t value) { return const_int(DType::I64, value, index.shape()); };
  int64_t size = 1;
  for (int d = dims.first; d < dims.last; ++d) size *= global[size_t(d)];
  UOp rest = cast(index, DType::I64);
  Counted out{within(rest, all(0), all(size)), {}, all(0)};
  out.inside = out.known;
  for (int d = dims.first; d < dims.last; ++d) {
    size /= global[size_t(d)];
    UOp place = binary(Op::IDiv, rest, all(size));
    rest = binary(Op::Mod, rest, all(size));
    if (parts_of(v, d) > 1) {
      const Held held = held_places(v, global, d);
      const UOp low = everywhere(held.low, index.shape());
      out.inside =
          binary(Op::And, out.inside, within(place, low, everywhere(held.high, index.shape())));
      place = binary(Op::Sub, place, low);
    }
    out.place = binary(Op::Add, binary(Op::Mul, out.place, all(local[size_t(d)])), place);
  }
  return out;
}

}  // namespace

UOp index_into_part(const UOp& index, const LocalValue& v, DimSpan global, Joined dims) {
  if (index.op() == Op::Expand)
    return expand(index_into_part(index.src(0), v, global, dims), index.shape());
  const Counted counted_there = counted(index, v, global, dims);
  return where(counted_there.inside, cast(counted_there.place, index.dtype()),
               const_int(index.dtype(), -1, index.shape()));
}

UOp index_into_whole(const UOp& index, const LocalValue& v, DimSpan global, Joined dims) {
  const Dims local = Sharding{*v.mesh, v.place}.local_shape(global);
  auto all = [&](int64_t value) { return const_int(DType::I64, value, index.shape()); };
  int64_t size = 1;
  for (int d = dims.first; d < dims.last; ++d) size *= local[size_t(d)];
  UOp rest = cast(index, DType::I64), whole = all(0);
  for (int d = dims.first; d < dims.last; ++d) {
    size /= local[size_t(d)];
    UOp place = binary(Op::IDiv, rest, all(size));
    rest = binary(Op::Mod, rest, all(size));
    if (parts_of(v, d) > 1)
      place = binary(Op::Add, place, everywhere(held_places(v, global, d).low, index.shape()));
    whole = binary(Op::Add, binary(Op::Mul, whole, all(global[size_t(d)])), place);
  }
  return cast(whole, index.dtype());
}

UOp held_elsewhere(const UOp& index, const LocalValue& v, DimSpan global, Joined dims) {
  if (index.op() == Op::Expand)
    return expand(held_elsewhere(index.src(0), v, global, dims), index.shape());
  const Counted counted_there = counted(index, v, global, dims);
  return binary(Op::And, counted_there.known, unary(Op::Not, counted_there.inside));
}

}  // namespace tinyshard
