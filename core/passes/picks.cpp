// A gather of an elementwise value would compute all elements to take a few. Below the op only
// those are computed, with a zero wherever the index is out of range. That is done if the index is
// much shorter, or if the value is arithmetic on places. Sums of one term need no loop at all:
//
//   gather(exp(x), i)                      where(in range, exp(gather(x, i)), 0)
//   sum over j of where(j == i, v, 0)      where(0 <= i < n, v, 0)
#include "core/passes/picks.h"

#include <algorithm>

#include "core/uop/args.h"

namespace tinyshard {
namespace {

constexpr int64_t kFewer = 4;        // elements of the value for each one that is picked
constexpr int kPlaceArithmetic = 8;  // nodes deep

// Computed from places and constants alone.
bool is_place_arithmetic(const UOp& x, int depth = kPlaceArithmetic) {
  if (x.op() == Op::Iota || is_const(x)) return true;
  return depth > 0 && is_elementwise(x.op()) && std::ranges::all_of(x->src(), [&](const UOp& s) {
           return is_place_arithmetic(s, depth - 1);
         });
}

UOp in_range(const UOp& index, int64_t size) {
  UOp wide = cast(index, DType::I64);
  UOp below = binary(Op::CmpLt, wide, const_int(DType::I64, 0, index.shape()));
  UOp inside = binary(Op::CmpLt, wide, const_int(DType::I64, size, index.shape()));
  return binary(Op::And, unary(Op::Not, below), inside);
}

UOp gather(const UOp& x, const UOp& index, int64_t axis) {
  if (is_const(x)) return reshaped_const(x, index.shape());
  return UOp::make(Op::Gather, x.dtype(), {x, index}, Dims{axis});
}

// The line of values along `axis` that x repeats along all other dims; null when it is not that.
UOp repeated_line(const UOp& x, int64_t axis) {
  if (x.op() != Op::Expand || x.src(0).op() != Op::Reshape) return UOp();
  const UOp &shaped = x.src(0), &line = shaped.src(0);
  bool along = line.shape().size() == 1 && shaped.shape()[axis] == line.shape()[0] &&
               x.shape()[axis] == line.shape()[0] && shaped->numel() == line->numel();
  return along ? line : UOp();
}

// The same without a look at whether the index is in range.
UOp picked(const UOp& x) {
  const UOp &computed = x.src(0), &index = x.src(1);
  int64_t axis = gather_axis(*x);
  if (computed.op() == Op::Iota) return cast(index, computed.dtype());
  if (computed.op() == Op::Expand && computed.src(0).shape()[axis] == 1) {
    const UOp& one = computed.src(0);  // all along the axis are equal
    Dims shape(index.shape().begin(), index.shape().end()), keep;
    for (size_t i = 0; i < shape.size(); ++i)
      keep.insert(keep.end(), {0, std::min(shape[i], one.shape()[i])});
    return expand(shrink(one, keep), shape);
  }
  if (UOp line = repeated_line(computed, axis); line && is_place_arithmetic(line)) {
    return reshape(gather(line, reshape(index, Dims{index->numel()}), 0), index.shape());
  }
  if (!is_elementwise(computed.op()) || computed->src().empty()) return UOp();
  std::vector<UOp> sources;
  for (const UOp& s : computed->src()) sources.push_back(gather(s, index, axis));
  return UOp::make(computed.op(), computed.dtype(), sources, computed->arg(), computed->payload);
}

// x without its size along `axis`, where it is the same all along; null elsewhere.
UOp one_along(const UOp& x, int64_t axis) {
  Dims shape(x.shape().begin(), x.shape().end());
  shape[size_t(axis)] = 1;
  if (is_const(x)) return reshaped_const(x, shape);
  if (x.op() != Op::Expand || x.src(0).shape()[size_t(axis)] != 1) return UOp();
  return expand(x.src(0), shape);
}

// Tells whether x counts the places along `axis` from 0.
bool counts_along(const UOp& x, int64_t axis) {
  UOp line = repeated_line(x, axis);
  while (line && line.op() == Op::Cast) line = line.src(0);
  return line && line.op() == Op::Iota;
}

}  // namespace

UOp sum_of_pick(const UOp& x) {
  if (reduce_arg(*x).op != ReduceOp::Sum || reduce_arg(*x).axes.size() != 1) return UOp();
  int64_t axis = reduce_arg(*x).axes[0];
  UOp picked = x.src(0);
  bool negative = picked.op() == Op::Neg;
  if (negative) picked = picked.src(0);
  if (picked.op() != Op::Where || picked.src(0).op() != Op::CmpEq || !is_const(picked.src(2), 0))
    return UOp();
  const UOp& equal = picked.src(0);
  for (int side = 0; side < 2; ++side) {
    if (!counts_along(equal.src(size_t(side)), axis)) continue;
    UOp index = one_along(equal.src(size_t(1 - side)), axis),
        value = one_along(picked.src(1), axis);
    if (!index || !value) return UOp();
    if (negative) value = unary(Op::Neg, value);
    return where(in_range(index, picked.shape()[axis]), value, const_like(x, 0));
  }
  return UOp();
}

UOp pick_first(const UOp& x) {
  const UOp &computed = x.src(0), &index = x.src(1);
  bool gains = kFewer * x->numel() <= computed->numel() || is_place_arithmetic(computed);
  UOp value = gains ? picked(x) : UOp();
  if (!value) return UOp();
  return where(in_range(index, computed.shape()[gather_axis(*x)]), value, const_like(x, 0));
}

}  // namespace tinyshard
