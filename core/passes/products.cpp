// A product as loops is a multiplication of both operands, each repeated along the dim that it lacks,
// and a sum:
//
//   dot a[m, k] b[k, n]      sum over 1 of a[m, k, (n)] * b[(m), k, n]      (n): repeated
//
// A convolution is the same over windows, x[n, c, oh, kh, ow, kw] * w[o, c, kh, kw] summed over c, kh
// and kw; its gradient by x is the convolution of the gradient, spread out by the stride, with the
// mirrored kernel, and its gradient by w the sum over images and places instead. Operands that take
// something to compute are stored before, as each element is read many times; all others who read
// such a value then read the stored one.
#include "core/passes/products.h"

#include <algorithm>

#include "core/passes/operands.h"
#include "core/rewrite/demand.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/node_set.h"
#include "core/uop/product_region.h"

namespace tinyshard {
namespace {

UOp reshaped(const UOp& x, Dims shape) { return reshape(x, shape); }
UOp expanded(const UOp& x, Dims shape) { return expand(x, shape); }
UOp permuted(const UOp& x, Dims order) { return permute(x, order); }

UOp stored(const UOp& x) { return UOp::make(Op::Contiguous, x.dtype(), {x}); }

bool is_computed(const UOp& x) {
  return is_elementwise(x.op()) || x.op() == Op::Reduce || x.op() == Op::Gather;
}

// An operand is read many times: what it takes to compute it is done once, before.
UOp operand(const UOp& x, DType dtype) {
  if (is_movement(x.op())) return x.with_src(std::vector<UOp>{operand(x.src(0), dtype)});
  if (is_mask(x)) {  // the loops end where it does
    std::vector<UOp> src{x.src(0)};
    for (const UOp& s : x->src().subspan(1))
      src.push_back(is_const(s) ? cast(s, dtype) : operand(s, dtype));
    return where(src[0], src[1], src[2]);
  }
  return is_computed(x) ? stored(cast(x, dtype)) : cast(x, dtype);
}

bool is_small(const UOp& x, SmallProducts limit) {
  return x.op() == Op::Dot && !region_of(x) && x.src(0).shape().back() <= limit.terms &&
         x->numel() <= limit.elements;
}

bool is_narrow(const UOp& x, SmallProducts limit) {
  return x.op() == Op::Dot && x.shape().back() <= limit.columns &&
         x->numel() * x.src(0).shape().back() <= limit.multiplications &&
         runs_along_last(x.src(0)) && runs_along_last(swap_last_two(x.src(1)));
}

// Decoding a token multiplies one row by each weight.
bool reads_a_matrix(const UOp& x, SmallProducts limit) {
  if (x.op() != Op::Dot) return false;
  const size_t rank = x.shape().size();
  const int64_t rows = x.shape()[rank - 2], columns = x.shape()[rank - 1],
                terms = x.src(0).shape().back();
  if (std::min(rows, columns) > limit.few || std::max(rows, columns) * terms < limit.matrix)
    return false;
  const UOp matrix = rows < columns ? swap_last_two(x.src(1)) : x.src(0);
  for (UOp y = matrix; is_movement(y.op()); y = y.src(0)) {
    if (y.op() == Op::Expand) return false;  // loops would read it once for each of the batch
  }
  return itemsize(x.dtype()) == 2 || runs_along_last(matrix);
}

// Few rows or columns of which a part counts, or few sums over a part: reading what lies behind is
// what takes the time.
bool is_partial(const UOp& x, const Demand& demand) {
  constexpr int64_t kFew = 8;
  if (x.op() != Op::Dot) return false;
  const size_t rank = x.shape().size();
  if (std::min(x.shape()[rank - 1], x.shape()[rank - 2]) > kFew) return false;
  auto masked = [](UOp y) {
    while (is_movement(y.op())) y = y.src(0);
    return is_mask(y);
  };
  return !demand.of(x).empty() || masked(x.src(0)) || masked(x.src(1));
}

// f16 and bf16 products sum in f32, as convolutions do.
UOp dot(const UOp& x) {
  DType wide = accumulator(x.dtype());
  UOp a = operand(x.src(0), wide), b = operand(x.src(1), wide);
  Dims sa(a.shape().begin(), a.shape().end()), sb(b.shape().begin(), b.shape().end());
  size_t batch = sa.size() - 2;
  int64_t m = sa[batch], k = sa[batch + 1], n = sb[batch + 1];
  Dims all(sa.begin(), sa.begin() + long(batch));
  Dims a_shape = all, b_shape = all;
  a_shape.insert(a_shape.end(), {m, k, 1});
  b_shape.insert(b_shape.end(), {1, k, n});
  all.insert(all.end(), {m, k, n});
  UOp product = binary(Op::Mul, expand(reshape(a, a_shape), all), expand(reshape(b, b_shape), all));
  UOp sum = reduce(ReduceOp::Sum, product, Dims{int64_t(batch) + 1});
  return reshape(cast(sum, x.dtype()), x.shape());
}

// A product in loops. With a region it is rounded after that, once.
UOp spelled_product(const UOp& x) {
  return region_of(x) ? from_sums(x, stored(dot(sums_of(x)))) : stored(dot(x));
}

UOp pad_or_cut(const UOp& x, int dim, int64_t low, int64_t high) {
  Dims keep, grow(2 * x.shape().size());
  for (int64_t s : x.shape()) keep.insert(keep.end(), {0, s});
  if (low < 0) keep[2 * dim] = -low;
  if (high < 0) keep[2 * dim + 1] += high;
  grow[2 * dim] = std::max<int64_t>(low, 0);
  grow[2 * dim + 1] = std::max<int64_t>(high, 0);
  return pad(shrink(x, keep), grow);
}

// [.., size, ..] -> [.., count, window, ..] with element [o, w] at o * stride + w * dilation.
UOp windows(const UOp& x, int dim, int64_t count, int64_t window, int64_t stride,
            int64_t dilation) {
  auto positions = [](int64_t n, int64_t step) {
    UOp iota = UOp::make(Op::Iota, DType::I64, {}, Dims{n});
    return binary(Op::Mul, iota, const_like(iota, double(step)));
  };
  UOp start = expanded(reshaped(positions(count, stride), {count, 1}), {count, window});
  UOp inside = expanded(reshaped(positions(window, dilation), {1, window}), {count, window});
  Dims shape(x.shape().begin(), x.shape().end()), ones(shape.size(), 1);
  shape[dim] = ones[dim] = count * window;
  UOp index = expand(reshape(binary(Op::Add, start, inside), ones), shape);
  UOp taken = UOp::make(Op::Gather, x.dtype(), {x, index}, Dims{dim});
  shape[dim] = count;
  shape.insert(shape.begin() + dim + 1, window);
  return reshape(taken, shape);
}

// Which elements of x a convolution counts, [1, 1, h, w]: all of them, before anything is padded.
UOp everywhere(const UOp& x) {
  return const_int(DType::Bool, 1, Dims{1, 1, x.shape()[2], x.shape()[3]});
}

bool pads(const ConvArg& a) {
  return a.pad_low[0] > 0 || a.pad_low[1] > 0 || a.pad_high[0] > 0 || a.pad_high[1] > 0;
}

// Padding is no operand: what it would be multiplied by may be infinite, and 0 * inf is NaN. oneDNN
// leaves these terms out, too; cuDNN multiplies zeros.
UOp counted(const UOp& mask, const UOp& x) {
  return where(expand(mask, x.shape()), x, const_float(x.dtype(), 0, x.shape()));
}

// sum over c, kh, kw of x[n, g, c, oh, kh, ow, kw] * w[g, o, c, kh, kw], where `inside` has x; null:
// everywhere.
UOp conv(const UOp& x, const UOp& inside, const UOp& w, const ConvArg& a) {
  auto xs = x.shape(), ws = w.shape();
  int64_t n = xs[0], g = a.groups, c = xs[1] / g, o = ws[0] / g, kh = ws[2], kw = ws[3];
  int64_t oh = a.result[2], ow = a.result[3];
  auto seen = [&](const UOp& v) {  // [.., oh, kh, ow, kw]
    UOp padded =
        pad_or_cut(pad_or_cut(v, 2, a.pad_low[0], a.pad_high[0]), 3, a.pad_low[1], a.pad_high[1]);
    return windows(windows(padded, 3, ow, kw, a.stride[1], a.dilation[1]), 2, oh, kh, a.stride[0],
                   a.dilation[0]);
  };
  Dims all{n, g, o, oh, ow, c, kh, kw};
  UOp left = permuted(reshaped(seen(x), {n, g, c, oh, kh, ow, kw}), {0, 1, 3, 5, 2, 4, 6});
  left = expand(reshaped(left, {n, g, 1, oh, ow, c, kh, kw}), all);
  UOp right = expand(reshaped(w, {1, g, o, 1, 1, c, kh, kw}), all);
  if (inside) {
    UOp mask = permuted(reshaped(seen(inside), {oh, kh, ow, kw}), {0, 2, 1, 3});
    right = counted(reshaped(mask, {1, 1, 1, oh, ow, 1, kh, kw}), right);
  }
  UOp sum = reduce(ReduceOp::Sum, binary(Op::Mul, left, right), Dims{5, 6, 7});
  return reshaped(sum, {n, g * o, oh, ow});
}

// Elements along a dim with stride - 1 zeros between two of them.
UOp with_gaps(const UOp& x, int dim, int64_t stride) {
  Dims shape(x.shape().begin(), x.shape().end());
  const int64_t size = shape[dim];
  shape.insert(shape.begin() + dim + 1, 1);
  Dims gaps(2 * shape.size());
  gaps[2 * (dim + 1) + 1] = stride - 1;
  UOp wide = pad(reshape(x, shape), gaps);
  shape.erase(shape.begin() + dim + 1);
  shape[dim] = size * stride;
  return pad_or_cut(reshape(wide, shape), dim, 0, -(stride - 1));
}

// The adjoint in x: the gradient spread out by the stride, convolved with the mirrored kernel.
UOp conv_backward_data(const UOp& gradient, const UOp& w, const ConvArg& a) {
  auto ws = w.shape();
  int64_t g = a.groups, o = ws[0] / g, c = ws[1];
  UOp spread = gradient, inside = everywhere(gradient);
  ConvArg forward = a;
  for (int i = 0; i < 2; ++i) {
    int dim = 2 + i;
    int64_t size = spread.shape()[dim], stride = a.stride[i], reach = a.dilation[i] * (ws[dim] - 1);
    if (stride > 1) {
      spread = with_gaps(spread, dim, stride), inside = with_gaps(inside, dim, stride);
      size = (size - 1) * stride + 1;
    }
    forward.stride[i] = 1;
    forward.pad_low[i] = reach - a.pad_low[i];
    forward.pad_high[i] = a.result[dim] + reach - size - forward.pad_low[i];
  }
  UOp mirrored = flip(w, Dims{2, 3});
  mirrored = permuted(reshaped(mirrored, {g, o, c, ws[2], ws[3]}), {0, 2, 1, 3, 4});
  if (!pads(forward) && a.stride[0] == 1 && a.stride[1] == 1) inside = UOp();
  return conv(spread, inside, reshaped(mirrored, {g * c, o, ws[2], ws[3]}), forward);
}

// sum over n, oh, ow of x[n, g, c, oh, kh, ow, kw] * gradient[n, g, o, oh, ow]
UOp conv_backward_weight(const UOp& x, const UOp& gradient, const ConvArg& a) {
  int64_t n = x.shape()[0], g = a.groups, c = a.result[1], o = a.result[0] / g, kh = a.result[2],
          kw = a.result[3];
  int64_t oh = gradient.shape()[2], ow = gradient.shape()[3];
  UOp in = x, inside = everywhere(x);
  bool padded = false;
  for (int i = 0; i < 2; ++i) {
    // Exactly as far as the windows reach: a stride may leave the last columns unread.
    int64_t outputs = i == 0 ? oh : ow, window = i == 0 ? kh : kw;
    int64_t reach = (outputs - 1) * a.stride[i] + (window - 1) * a.dilation[i] + 1;
    const int64_t high = reach - x.shape()[2 + i] - a.pad_low[i];
    padded = padded || a.pad_low[i] > 0 || high > 0;
    in = pad_or_cut(in, 2 + i, a.pad_low[i], high);
    inside = pad_or_cut(inside, 2 + i, a.pad_low[i], high);
  }
  auto seen = [&](const UOp& v) {
    return windows(windows(v, 3, ow, kw, a.stride[1], a.dilation[1]), 2, oh, kh, a.stride[0],
                   a.dilation[0]);
  };
  in = seen(in);
  Dims all{g, o, c, kh, kw, n, oh, ow};
  UOp left = permuted(reshaped(in, {n, g, c, oh, kh, ow, kw}), {1, 2, 4, 6, 0, 3, 5});
  left = expand(reshaped(left, {g, 1, c, kh, kw, n, oh, ow}), all);
  UOp right = permuted(reshaped(gradient, {n, g, o, oh, ow}), {1, 2, 0, 3, 4});
  right = expand(reshaped(right, {g, o, 1, 1, 1, n, oh, ow}), all);
  if (padded) {
    UOp mask = permuted(reshaped(seen(inside), {oh, kh, ow, kw}), {1, 3, 0, 2});
    right = counted(reshaped(mask, {1, 1, 1, kh, kw, 1, oh, ow}), right);
  }
  UOp sum = reduce(ReduceOp::Sum, binary(Op::Mul, left, right), Dims{5, 6, 7});
  return reshaped(sum, {g * o, c, kh, kw});
}

// The gradient by x of a 1x1 convolution with a stride is a product, spread out by the stride:
//
//   w[o, c] transposed, times gradient[n, o, oh * ow]  ->  [n, c, oh, ow]  ->  [n, c, h, w] with zeros between
//
// Null where it is none, or where no library takes the product.
UOp strided_product(const UOp& x, const std::function<bool(const LibraryCall&)>& library_supports) {
  const ConvArg a = conv_arg(*x);
  if (x.op() != Op::ConvBackwardData || a.groups != 1) return UOp();
  const UOp &gradient = x.src(0), &w = x.src(1);
  const auto g = gradient.shape(), ws = w.shape();
  for (int i = 0; i < 2; ++i) {
    if (ws[2 + i] != 1 || a.pad_low[i] != 0) return UOp();
  }
  const UOp matrix = permuted(reshaped(w, {1, ws[0], ws[1]}), {0, 2, 1});
  const UOp product = UOp::make(
      Op::Dot, x.dtype(),
      {expanded(matrix, {g[0], ws[1], ws[0]}), reshaped(gradient, {g[0], g[1], g[2] * g[3]})},
      Dims{1});
  if (!library_supports(row_major_call(product))) return UOp();
  UOp result = reshaped(product, {g[0], ws[1], g[2], g[3]});
  for (int i = 0; i < 2; ++i) {
    const int dim = 2 + i;
    if (a.stride[i] > 1) result = with_gaps(result, dim, a.stride[i]);
    result = pad_or_cut(result, dim, 0, a.result[dim] - result.shape()[dim]);
  }
  return stored(result);
}

UOp convolution(const UOp& x, const std::function<bool(const LibraryCall&)>& library_supports) {
  if (UOp product = strided_product(x, library_supports)) return product;
  ConvArg arg = conv_arg(*x);
  DType wide = accumulator(x.dtype());
  if (wide != x.dtype()) {
    // A library that sums in f32 and does not know 16-bit floats is still faster than loops.
    UOp in_wide = UOp::make(x.op(), wide, {cast(x.src(0), wide), cast(x.src(1), wide)}, x->arg());
    if (library_supports(row_major_call(in_wide))) return cast(in_wide, x.dtype());
  }
  UOp a = operand(x.src(0), wide), b = operand(x.src(1), wide);
  UOp result = x.op() == Op::Conv               ? conv(a, pads(arg) ? everywhere(a) : UOp(), b, arg)
               : x.op() == Op::ConvBackwardData ? conv_backward_data(a, b, arg)
                                                : conv_backward_weight(a, b, arg);
  return stored(cast(result, x.dtype()));
}

// Lets everybody who needs a stored value, as operands are for a product in loops, read it: nobody
// computes or stores it again.
std::vector<UOp> share_stored(const Graph& graph) {
  NodeSet has_copy;
  for (const UOp& x : graph.order()) {
    if (x.op() == Op::Contiguous && is_computed(x.src(0))) has_copy.add(x.src(0));
  }
  if (has_copy.size() == 0) return graph.roots();
  auto is_stored = [&](const UOp& x) { return has_copy.contains(x); };
  std::vector<UOp> shared = rewrite_once(graph, [&](const UOp& x, const UOp& was) {
    if (was.op() == Op::Contiguous || std::ranges::none_of(was->src(), is_stored)) return UOp();
    std::vector<UOp> src(x->src().begin(), x->src().end());
    for (size_t i = 0; i < src.size(); ++i) {
      if (is_stored(was.src(i))) src[i] = stored(src[i]);
    }
    return x.with_src(src);
  });
  for (size_t i = 0; i < shared.size(); ++i) {
    if (is_stored(graph.roots()[i])) shared[i] = stored(shared[i]);
  }
  return shared;
}

}  // namespace

std::vector<UOp> lower_products(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports,
                                SmallProducts small) {
  const Demand demand(graph.order(), graph.roots());
  auto lower = [&](const UOp& x, bool partial) {  // null: as it is
    if (is_small(x, small)) return dot(x);
    bool product = x.op() == Op::Dot;
    if (!product && x.op() != Op::Conv && x.op() != Op::ConvBackwardData &&
        x.op() != Op::ConvBackwardWeight)
      return UOp();
    if (!is_narrow(x, small) && !reads_a_matrix(x, small) && !partial &&
        library_supports(row_major_call(x)))
      return UOp();
    return product ? spelled_product(x) : convolution(x, library_supports);
  };
  Graph lowered = graph;
  lowered.become(rewrite_once(
      graph, [&](const UOp& x, const UOp& was) { return lower(x, is_partial(was, demand)); }));
  return share_stored(lowered);
}

}  // namespace tinyshard
