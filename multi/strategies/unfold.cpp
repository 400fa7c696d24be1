// Windows of the last dim, and their sum back. Along a dim that is split, each device receives the
// rows that its windows reach (multi/window.h), and the result is split as the dim was.
//
//   f32[12] on 4 devices in windows of 3, every 1: 10 windows, 3 for each device
//     device 1 has rows 3 4 5 and makes windows 3, 4 and 5, of rows 3 to 7: it receives 6 and 7
//   back, from 3 windows for each device to 3 rows
//     device 1 has windows 3 4 5 and makes rows 3, 4 and 5, of windows 1 to 5: it receives 1 and 2
#include <algorithm>

#include "core/uop/unfold.h"
#include "multi/strategies/strategies.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Parts of windows, each made of rows that one device has.
UOp windows_of_part(const LocalValue& v, int dim, int64_t part, int64_t size,
                    const UnfoldArg& arg) {
  const int64_t reach = arg.dilation * (arg.kernel - 1);
  const UOp rows = window(
      v, dim, {part * arg.stride, 0, (part - 1) * arg.stride + reach + 1, 0, size});
  return unfold(rows, arg);
}

// Parts of rows. Windows begin every `stride` rows, so that a part is first made of so many rows
// that all parts begin alike.
UOp rows_of_part(LocalValue v, int dim, int64_t part, int64_t windows, const UnfoldArg& arg) {
  const int64_t even = rounded_up(part, arg.stride), reach = arg.dilation * (arg.kernel - 1);
  const int64_t before = rounded_up(reach, arg.stride) / arg.stride;  // windows of earlier rows
  const int64_t count = even / arg.stride + before;
  v.local = window(v, dim, {even / arg.stride, -before, count, 0, windows});
  UnfoldArg wide = arg;
  wide.size = (count - 1) * arg.stride + std::max(reach + 1, arg.stride);
  const UOp rows = unfold_backward(v.local, wide);
  v.local = rows_of(rows, dim, before * arg.stride, even, 0, wide.size);
  return even == part ? v.local : window(v, dim, {part, 0, part, 0, arg.size});
}

}  // namespace

LocalValue unfolded(const UOp& x, LocalValues& values) {
  const bool back = x.op() == Op::UnfoldBackward;
  const DimSpan shape = x.src(0).shape();
  const int dim = int(shape.size()) - (back ? 2 : 1);
  const UnfoldArg arg = unfold_arg(*x);
  LocalValue v = values.of(x.src(0));
  if (!v.mesh) return rebuilt(x, {v}, v);
  const Mesh mesh = *v.mesh;
  // A window is whole, and views add zeros to each term of a sum, but not to those of a maximum.
  std::vector<Placement> wanted = v.place;
  for (Placement& p : wanted) {
    const bool term = p.is_partial() && p.op == ReduceOp::Sum;
    const bool within = p.is_shard() && p.dim > dim;
    if (within || (p.is_partial() && !term)) p = Replicate;
  }
  v = redistribute(std::move(v), shape, mesh, wanted);
  if (parts_of(v, dim) == 1 || product(shape) == 0 || x->numel() == 0) {
    // Sizes of one element are as large in every part.
    if (parts_of(v, dim) > 1) {
      for (Placement& p : wanted) p = p == Shard(dim) ? Replicate : p;
      v = redistribute(std::move(v), shape, mesh, wanted);
    }
    return rebuilt(x, {v}, v);
  }
  // One axis divides the dim while rows travel; inner ones cut their parts afterwards.
  const int axis = axis_of(v, dim);
  std::vector<Placement> once = wanted;
  for (int a = axis + 1; a < int(once.size()); ++a) {
    if (once[size_t(a)] == Shard(dim)) once[size_t(a)] = Replicate;
  }
  const int64_t devices = mesh.axes()[size_t(axis)].size, size = x.shape()[size_t(dim)];
  if (size < devices) {
    once[size_t(axis)] = Replicate;
    v = redistribute(std::move(v), shape, mesh, once);
    return rebuilt(x, {v}, v);
  }
  v = redistribute(std::move(v), shape, mesh, once);
  const int64_t part = (size + devices - 1) / devices;
  v.local = back ? rows_of_part(v, dim, part, shape[size_t(dim)], arg)
                 : windows_of_part(v, dim, part, shape[size_t(dim)], arg);
  return redistribute({v.local, mesh, once}, x.shape(), mesh, wanted);
}

}  // namespace tinyshard
