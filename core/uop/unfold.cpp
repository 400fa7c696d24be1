// Copies of x, each followed by nothing, are read as rows that are longer by `dilation`: every row
// starts that much further into x. x = 0 1 2 3 4 in windows of 3:
//
//   0 1 2 3 4 | 0 1 2 3 4 | 0 1 2 3 4 | 0 1 2 3 4      copies
//   0 1 2 3 4 0 | 1 2 3 4 0 1 | 2 3 4 0 1 2            rows of 6
//   0 1 2         1 2 3         2 3 4                  the first 3 of each: window o is column o
#include "core/uop/unfold.h"

#include <algorithm>
#include <numeric>

#include "core/uop/sizes.h"

namespace tinyshard {
namespace {

// Changes of the last dims alone.
Dims with_last(const UOp& x, size_t dims, std::initializer_list<int64_t> last) {
  Dims shape(x.shape().begin(), x.shape().end() - int64_t(dims));
  shape.insert(shape.end(), last);
  return shape;
}

UOp resized(const UOp& x, size_t dim, int64_t size) {
  const int64_t now = x.shape()[dim];
  Dims arg(2 * x.shape().size(), 0);
  if (size >= now) {
    arg[2 * dim + 1] = size - now;
    return pad(x, arg);
  }
  for (size_t i = 0; i < x.shape().size(); ++i) arg[2 * i + 1] = x.shape()[i];
  arg[2 * dim + 1] = size;
  return shrink(x, arg);
}
UOp last_resized(const UOp& x, int64_t size) { return resized(x, x.shape().size() - 1, size); }

UOp swapped(const UOp& x) { return swap_last_two(x); }

// How the rows of the picture above are made for `count` windows of a line of n elements.
struct Rows {
  int64_t line, row, copies;
  Rows(int64_t n, int64_t count, const UnfoldArg& a)
      : line(std::max(n, count * a.stride)),
        row(line + a.dilation),
        copies((a.kernel * row + line - 1) / line) {}
};

int64_t count_of(int64_t n, const UnfoldArg& a) {
  const int64_t reach = a.dilation * (a.kernel - 1) + 1;
  return n < reach ? 0 : (n - reach) / a.stride + 1;
}

}  // namespace

UOp unfold(const UOp& x, const UnfoldArg& arg) {
  const UOp made = UOp::make(Op::Unfold, x.dtype(), {x}, to_ints(arg));
  return is_const(x) ? reshaped_const(x, made.shape()) : made;
}

UOp unfold_backward(const UOp& windows, const UnfoldArg& arg) {
  return UOp::make(Op::UnfoldBackward, windows.dtype(), {windows}, to_ints(arg));
}

UOp spelled_unfold(const UOp& x, const UnfoldArg& a) {
  const int64_t n = x.shape().back(), count = count_of(n, a);
  const Rows r(n, count, a);
  UOp line = last_resized(x, r.line);
  UOp copies = expand(reshape(line, with_last(line, 1, {1, r.line})),
                      with_last(line, 1, {r.copies, r.line}));
  UOp flat =
      last_resized(reshape(copies, with_last(copies, 2, {r.copies * r.line})), a.kernel * r.row);
  UOp rows = last_resized(reshape(flat, with_last(flat, 1, {a.kernel, r.row})), count * a.stride);
  UOp steps = last_resized(reshape(rows, with_last(rows, 1, {count, a.stride})), 1);
  return swapped(reshape(steps, with_last(steps, 2, {count})));
}

UOp spelled_unfold_backward(const UOp& windows, const UnfoldArg& a) {
  const size_t rank = windows.shape().size();
  const int64_t count = windows.shape()[rank - 2];
  const Rows r(a.size, count, a);
  UOp steps = swapped(windows);  // [.., kernel, count]
  steps = last_resized(reshape(steps, with_last(steps, 1, {count, 1})), a.stride);
  UOp rows = last_resized(reshape(steps, with_last(steps, 2, {count * a.stride})), r.row);
  UOp flat = last_resized(reshape(rows, with_last(rows, 2, {a.kernel * r.row})), r.copies * r.line);
  UOp copies = reshape(flat, with_last(flat, 1, {r.copies, r.line}));
  UOp line = reduce(ReduceOp::Sum, copies, Dims{int64_t(copies.shape().size()) - 2});
  return last_resized(reshape(line, with_last(line, 2, {r.line})), a.size);
}

}  // namespace tinyshard
