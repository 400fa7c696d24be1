// Halos. Rows of the output are divided evenly, and each device receives the rows of the input that
// its windows read, those of the padding as zeros:
//
//   f32[.., 12 rows, ..] on 4 devices, a kernel of 3 rows with padding 1
//     device 1 has rows 3 to 5 and reads rows 2 to 6: it receives row 2 from device 0 and row 6
//     from device 2, and convolves its 5 rows without padding
//
// The gradient of the weights reads the same rows beside its part of the output's gradient, and is
// a pending sum. The gradient of the input reads rows of the output's gradient, a window of as many
// rows where the stride is 1.
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
  if (of_input && arg.stride[s] != 1) return std::nullopt;

  const std::vector<Placement> places = image_places(split, axis, space);
  a = redistribute(std::move(a), shape_a, mesh, places);
  b = redistribute(std::move(b), shape_b, mesh,
                   of_weights ? places : std::vector<Placement>(places.size()));
  const int64_t part = (result + devices - 1) / devices;
  if (of_input) {
    a.local = window(a, int(dim), {part, arg.pad_low[s] - reach, part + reach, 0, shape_a[dim]});
    arg.pad_low[s] = arg.pad_high[s] = reach;
  } else {
    const int64_t step = part * arg.stride[s], rows = step - arg.stride[s] + reach + 1;
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
  const Dims local = Sharding{mesh, placed}.local_shape(x.shape());
  std::copy(local.begin(), local.end(), arg.result);
  return LocalValue{UOp::make(x.op(), x.dtype(), {a.local, b.local}, to_ints(arg)), mesh, placed};
}

}  // namespace tinyshard
