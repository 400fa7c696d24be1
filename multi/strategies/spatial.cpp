// Halos. Rows of the output are divided evenly, and each device receives the rows of the input that
// its windows read, those of the padding as zeros:
//
//   f32[.., 12 rows, ..] on 4 devices, a kernel of 3 rows with padding 1
//     device 1 has rows 3 to 5 and reads rows 2 to 6: it receives row 2 from device 0 and row 6
//     from device 2, and convolves its 5 rows without padding
//
// The gradient of the weights reads the same rows beside its part of the output's gradient, and is
// a pending sum. The gradient of the input reads rows of the output's gradient: with stride 2, rows
// 4 to 7 of the input read rows 1 to 4 of it. Parts begin alike where the stride divides them: parts
// of 3 rows are made as parts of 4, and rows move to where they belong.
#include "multi/strategies/spatial.h"

#include <algorithm>

#include "multi/window.h"

namespace tinyshard {
namespace {

// The one mesh axis that splits v in space; -1 for none, or several.
int spatial_axis(const LocalValue& v) {
  int found = -1;
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (!v.place[a].is_shard() || v.place[a].dim < 2) continue;
    if (found >= 0) return -1;
    found = int(a);
  }
  return found;
}

// Parts of the batch stay, the space is divided along `axis`, and the rest is whole.
std::vector<Placement> image_places(const LocalValue& v, int axis, Placement space) {
  std::vector<Placement> wanted(v.place.size());
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (v.place[a] == Shard(0)) wanted[a] = Shard(0);
  }
  wanted[size_t(axis)] = space;
  return wanted;
}

}  // namespace

std::optional<LocalValue> spatial_convolution(const UOp& x, const Mesh& mesh, LocalValues& values) {
  const bool of_weights = x.op() == Op::ConvBackwardWeight,
             of_input = x.op() == Op::ConvBackwardData;
  LocalValue a = values.on(x.src(0), mesh), b = values.on(x.src(1), mesh);
  const DimSpan shape_a = x.src(0).shape(), shape_b = x.src(1).shape();
  const LocalValue& split = of_weights && spatial_axis(b) >= 0 ? b : a;
  const int axis = spatial_axis(split);
  if (axis < 0 || product(shape_a) == 0 || product(shape_b) == 0 || x->numel() == 0)
    return std::nullopt;
  const Placement space = split.place[size_t(axis)];
  const size_t dim = size_t(space.dim), s = dim - 2;
  const int64_t devices = mesh.axes()[size_t(axis)].size;
  ConvArg arg = conv_arg(*x);
  const int64_t kernel = of_weights ? x.shape()[dim] : shape_b[dim];
  const int64_t reach = arg.dilation[s] * (kernel - 1);
  const int64_t result = of_weights ? shape_b[dim] : x.shape()[dim];
  if (devices == 1 || result < devices || shape_a[dim] < devices) return std::nullopt;

  const std::vector<Placement> places = image_places(split, axis, space);
  a = redistribute(std::move(a), shape_a, mesh, places);
  b = redistribute(std::move(b), shape_b, mesh,
                   of_weights ? places : std::vector<Placement>(places.size()));
  const int64_t part = (result + devices - 1) / devices;
  const int64_t stride = arg.stride[s], even = rounded_up(part, stride);
  if (of_input) {
    const Reading read = reading(even, arg.pad_low[s], reach, stride);
    a.local = window(a, int(dim), {even / stride, read.first, read.windows, 0, shape_a[dim]});
    arg.pad_low[s] = read.before;
    arg.pad_high[s] = std::max<int64_t>(read.length - even - read.before, 0);
  } else {
    const int64_t step = part * stride, rows = step - stride + reach + 1;
    a.local = window(a, int(dim), {step, -arg.pad_low[s], rows, 0, shape_a[dim]});
    arg.pad_low[s] = arg.pad_high[s] = 0;
  }
  std::vector<Placement> placed = places;
  if (of_weights) {
    for (Placement& p : placed) {
      if (!p.is_shard()) continue;
      a.local =
          p.dim == 0 ? with_padding_filled(a, shape_a, 0, const_int(a.local.dtype(), 0)) : a.local;
      b.local = with_padding_filled(b, shape_b, p.dim, const_int(b.local.dtype(), 0));
      p = Partial();
    }
  }
  Dims local = Sharding{mesh, placed}.local_shape(x.shape());
  if (of_input) local[dim] = even;
  std::copy(local.begin(), local.end(), arg.result);
  LocalValue made{UOp::make(x.op(), x.dtype(), {a.local, b.local}, to_ints(arg)), mesh, placed};
  if (of_input && even != part) made.local = window(made, int(dim), {part, 0, part, 0, result});
  return made;
}

}  // namespace tinyshard
