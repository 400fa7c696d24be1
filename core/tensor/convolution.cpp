// Windows over the last dims, and convolutions.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/sizes.h"
#include "core/tensor/value_internal.h"
#include "core/uop/unfold.h"

namespace tinyshard {
namespace value {

int64_t window_reach(int64_t kernel, int64_t dilation) {
  return add_sizes(multiply_sizes(dilation, kernel - 1), 1);
}

int64_t window_count(int64_t size, int64_t kernel, int64_t stride, int64_t dilation) {
  int64_t reach = window_reach(kernel, dilation);
  return size < reach ? 0 : (size - reach) / stride + 1;
}

namespace {

// Turns the last dim, of n elements, into [count, kernel] with out[o, j] = x[o * stride + j *
// dilation].
Value windows_of_last(const Value& x, int64_t kernel, int64_t stride, int64_t dilation) {
  const int64_t n = x.shape().back();
  stride = std::min(stride, n + 1);  // one window, however much longer the step is
  const int64_t count = window_count(n, kernel, stride, dilation);
  Dims lead(x.shape().begin(), x.shape().end() - 1);
  auto shaped = [&](std::initializer_list<int64_t> last) {
    Dims shape = lead;
    shape.insert(shape.end(), last);
    return shape;
  };
  auto cut_last = [](const Value& v, int64_t to) { return shrink_axis(v, v.rank() - 1, 0, to); };
  auto padded_to = [](const Value& v, int64_t to) {
    Pairs padding(v.rank(), {0, 0});
    padding.back() = {0, to - v.shape().back()};
    return to > v.shape().back() ? pad(v, padding) : v;
  };
  if (count == 0 || kernel == 0) return constant(x.dtype(), 0, shaped({count, kernel}));
  if (kernel == 1) {  // every stride-th element
    Value rows = reshape(padded_to(cut_last(x, std::min(n, count * stride)), count * stride),
                         shaped({count, stride}));
    return cut_last(rows, 1);
  }
  if (stride == kernel && dilation == 1)
    return reshape(cut_last(x, count * stride), shaped({count, kernel}));
  return unfold(x.node(), {kernel, stride, dilation});
}

}  // namespace

Value windows(const Value& x, const Windows& w, const Pairs& padding, const Scalar& value) {
  int64_t spatial = static_cast<int64_t>(w.kernel.size()), first = x.rank() - spatial;
  Value out = x;
  for (int64_t i = spatial - 1; i >= 0; --i) {
    // The dim goes last, and comes back as its count and, at the very end, its kernel.
    Value last = move_axis(out, first + i, out.rank() - 1);
    if (!padding
             .empty()) {  // right before its windows, which are shifted instead where it is split
      Pairs around(last.rank(), {0, 0});
      around.back() = padding[first + i];
      last = pad(last, around, value);
    }
    Value pair = windows_of_last(last, w.kernel[i], w.stride[i], w.dilation[i]);
    out = move_axis(pair, pair.rank() - 2, first + i);
  }
  // Kernels came in reverse.
  Dims order(out.rank());
  std::iota(order.begin(), order.end(), 0);
  std::reverse(order.end() - spatial, order.end());
  return permute(out, order);
}

Dims per_dim(const Ints& option, int64_t spatial, const char* name) {
  if (option.size() == 1) return Dims(spatial, option[0]);
  if (static_cast<int64_t>(option.size()) != spatial) {
    fail(fmt::format("{} has {} values for {} dims", name, option.size(), spatial));
  }
  return option.values;
}

Pairs spatial_padding(const Ints& padding, int64_t spatial) {
  Pairs pairs;
  if (spatial > 0 && static_cast<int64_t>(padding.size()) == 2 * spatial) {
    for (int64_t i = spatial - 1; i >= 0; --i)
      pairs.emplace_back(limited(padding[2 * i]), limited(padding[2 * i + 1]));
    return pairs;
  }
  for (int64_t p : per_dim(padding, spatial, "padding")) pairs.emplace_back(limited(p), limited(p));
  return pairs;
}

}  // namespace value

using value::shape_text;
using value::text_of;
using value::Value;

namespace {

struct Conv {
  int64_t spatial = 0, groups = 1;
  Dims kernel, stride, dilation;
  Pairs padding;
};

Conv check(const Value& x, const Value& w, int64_t groups, const Ints& stride, const Ints& dilation,
           const Ints& padding) {
  Conv conv;
  if (x.rank() < 3 || x.rank() != w.rank()) {
    fail(fmt::format("x is {}, weight is {}: both need a batch, channels and the same spatial dims",
                     text_of(x), text_of(w)));
  }
  conv.spatial = x.rank() - 2;
  conv.groups = groups;
  conv.kernel = Dims(w.shape().begin() + 2, w.shape().end());
  conv.stride = value::per_dim(stride, conv.spatial, "stride");
  conv.dilation = value::per_dim(dilation, conv.spatial, "dilation");
  conv.padding = value::spatial_padding(padding, conv.spatial);
  auto positive = [](int64_t v) { return v > 0; };
  if (!std::ranges::all_of(conv.kernel, positive))
    fail(fmt::format("weight {} has a kernel without elements", text_of(w)));
  if (groups <= 0 || !std::ranges::all_of(conv.stride, positive) ||
      !std::ranges::all_of(conv.dilation, positive)) {
    fail(fmt::format("groups {}, stride {} and dilation {} must be positive", groups,
                     shape_text(conv.stride), shape_text(conv.dilation)));
  }
  for (const auto& [low, high] : conv.padding) {
    if (low < 0 || high < 0) {
      fail(fmt::format("padding ({}, {}) is negative: shrink cuts what is not wanted of x", low,
                       high));
    }
  }
  return conv;
}

// The type of the operands and the result of a convolution's node. One of 16-bit floats sums in f32
// inside and rounds once; what is no node of the graph is spelled out in the type of its sums.
DType type_of_node(DType type, DType result, bool is_node) {
  return is_float(type) && type == result && is_node ? type : accumulator(result);
}

Value add_bias(const Value& out, const Tensor& bias, int64_t channels) {
  if (!bias.defined()) return out;
  if (bias.numel() != channels) {
    fail(fmt::format("bias is {}, but there are {} output channels", bias.describe(), channels));
  }
  Dims shape(out.rank(), 1);
  shape[1] = channels;
  return out + value::reshape(bias, shape);
}

// Turns one spatial dim into two of which the first has size one.
Value as_image(const Value& x) { return x.rank() == 3 ? value::unsqueeze(x, 2) : x; }

ConvArg conv_arg(const Conv& conv, const Dims& result) {
  ConvArg arg{{1, 1}, {1, 1}, {0, 0}, {0, 0}, conv.groups, {}};
  int64_t skip = 2 - conv.spatial;
  for (int64_t i = 0; i < conv.spatial; ++i) {
    arg.stride[skip + i] = conv.stride[i], arg.dilation[skip + i] = conv.dilation[i];
    arg.pad_low[skip + i] = conv.padding[i].first, arg.pad_high[skip + i] = conv.padding[i].second;
  }
  Dims image = result;
  if (conv.spatial == 1) image.insert(image.begin() + 2, 1);
  std::copy(image.begin(), image.end(), arg.result);
  return arg;
}

// The dims before the last two of a volume.
Conv before_images(const Conv& conv) {
  const int64_t n = conv.spatial - 2;
  auto first = [n](const auto& list) {
    return std::decay_t<decltype(list)>(list.begin(), list.begin() + n);
  };
  return {n,
          conv.groups,
          first(conv.kernel),
          first(conv.stride),
          first(conv.dilation),
          first(conv.padding)};
}
Conv of_images(const Conv& conv) {
  auto last = [](const auto& list) {
    return std::decay_t<decltype(list)>(list.end() - 2, list.end());
  };
  return {2,
          conv.groups,
          last(conv.kernel),
          last(conv.stride),
          last(conv.dilation),
          last(conv.padding)};
}

// A volume as the images that libraries take: each position of a window along the dims before the last
// two is an image, and what the window has there are its channels.
//
//   x [n, c, depth, h, w], a kernel of 3 slices      images [n * windows, c * 3, h, w]
//
// Sums over windows and channels are then those of one convolution, which rounds once.
struct Slices {
  Value images;
  Dims counts;  // of windows
};
Slices slices_of(const Value& x, const Conv& before) {
  const int64_t n = before.spatial, rank = x.rank();
  Dims order{0, 1, rank - 2, rank - 1}, apart{0};
  for (int64_t i = 0; i < n; ++i) order.push_back(2 + i), apart.push_back(4 + i);
  apart.push_back(1);
  for (int64_t i = 0; i < n; ++i) apart.push_back(4 + n + i);
  apart.insert(apart.end(), {2, 3});
  const Value w =
      value::windows(value::permute(x, order), {before.kernel, before.stride, before.dilation});
  Dims counts(w.shape().begin() + 4, w.shape().begin() + 4 + n);
  Dims shape{x.size(0) * product(counts), x.size(1) * product(before.kernel), x.size(rank - 2),
             x.size(rank - 1)};
  return {value::reshape(value::permute(w, apart), shape), counts};
}
// And back: [n * windows, channels, h, w] to [n, channels, windows.., h, w].
Value volume_of(const Value& images, int64_t batch, const Dims& counts) {
  Dims apart{batch}, order{0, int64_t(counts.size()) + 1};
  apart.insert(apart.end(), counts.begin(), counts.end());
  apart.insert(apart.end(), images.shape().begin() + 1, images.shape().end());
  for (size_t i = 0; i < counts.size(); ++i) order.push_back(1 + int64_t(i));
  const int64_t rank = int64_t(apart.size());
  order.insert(order.end(), {rank - 2, rank - 1});
  return value::permute(value::reshape(images, apart), order);
}

Value conv_of_volumes(const Value& x, const Value& w, const Conv& conv, const Dims& shape) {
  const Conv before = before_images(conv), image = of_images(conv);
  Pairs around(x.rank(), {0, 0});
  std::ranges::copy(before.padding, around.begin() + 2);
  const Slices slices = slices_of(value::pad(x, around), before);
  const Value kernel = value::reshape(
      w, {w.size(0), w.size(1) * product(before.kernel), image.kernel[0], image.kernel[1]});
  const Dims made{slices.images.size(0), shape[1], shape[shape.size() - 2], shape.back()};
  const UOp node = UOp::make(Op::Conv, x.dtype(), {slices.images.node(), kernel.node()},
                             to_ints(conv_arg(image, made)));
  return volume_of(node, x.size(0), slices.counts);
}

// Sum of products over windows: any number of dims, any type.
Value conv_by_windows(const Value& x, const Value& w, const Conv& conv) {
  Value out =
      value::windows(x, {conv.kernel, conv.stride, conv.dilation});  // [n, c, out.., kernel..]
  Dims counts(out.shape().begin() + 2, out.shape().begin() + 2 + conv.spatial),
      ones(conv.spatial, 1);
  int64_t n = x.size(0), g = conv.groups, c = w.size(1), o = w.size(0) / g;
  auto shaped = [&](Dims head, const Dims& middle) {
    head.insert(head.end(), middle.begin(), middle.end());
    head.insert(head.end(), conv.kernel.begin(), conv.kernel.end());
    return head;
  };
  Value products = value::reshape(out, shaped({n, g, 1, c}, counts)) *
                   value::reshape(w, shaped({1, g, o, c}, ones));
  Dims axes{3};
  for (int64_t i = 0; i < conv.spatial; ++i) axes.push_back(4 + conv.spatial + i);
  Dims shape{n, g * o};
  shape.insert(shape.end(), counts.begin(), counts.end());
  return value::reshape(value::sum(products, axes), shape);
}

// A transposed convolution reads x with zeros between its elements along each dim, and around them as
// far as its windows reach beyond what is cut off.
Value with_zeros_between(Value x, const Conv& conv, int64_t i, int64_t extra) {
  const int64_t axis = 2 + i, stride = conv.stride[i], n = x.size(axis),
                reach = value::window_reach(conv.kernel[i], conv.dilation[i]) - 1;
  Value apart = value::unsqueeze(x, axis + 1);
  Pairs zeros(apart.rank(), {0, 0});
  zeros[axis + 1] = {0, stride - 1};
  Dims line = x.dims();
  line[axis] = multiply_sizes(n, stride);
  x = value::shrink_axis(value::reshape(value::pad(apart, zeros), line), axis, 0,
                         n ? (n - 1) * stride + 1 : 0);
  const int64_t low = reach - conv.padding[i].first, high = reach - conv.padding[i].second + extra;
  Pairs around(x.rank(), {0, 0});
  around[axis] = {std::max<int64_t>(0, low), std::max<int64_t>(0, high)};
  x = value::pad(x, around);
  return value::shrink_axis(x, axis, std::max<int64_t>(0, -low),
                            x.size(axis) - std::max<int64_t>(0, -high));
}

// Along the dims before the last two a convolution with the flipped kernel, along these the gradient of
// one.
Value transposed_conv_of_volumes(Value x, const Value& w, const Conv& conv, const Dims& extra,
                                 const Dims& shape) {
  Conv before = before_images(conv);
  const Conv image = of_images(conv);
  Dims flipped, order{0};
  for (int64_t i = 0; i < before.spatial; ++i) {
    x = with_zeros_between(x, conv, i, extra[i]);
    flipped.push_back(2 + i), order.push_back(2 + i);
  }
  before.stride = Dims(before.stride.size(), 1);
  const int64_t rank = w.rank();
  order.insert(order.end(), {1, rank - 2, rank - 1});
  const Slices slices = slices_of(x, before);
  const Value kernel = value::reshape(
      value::permute(value::flip(w, flipped), order),
      {w.size(0) * product(before.kernel), w.size(1), image.kernel[0], image.kernel[1]});
  const Dims made{slices.images.size(0), shape[1], shape[shape.size() - 2], shape.back()};
  const UOp node = UOp::make(Op::ConvBackwardData, x.dtype(), {slices.images.node(), kernel.node()},
                             to_ints(conv_arg(image, made)));
  return volume_of(node, x.size(0), slices.counts);
}

}  // namespace

Tensor Tensor::conv2d(const Tensor& weight, const Tensor& bias, const ConvOptions& options,
                      Caller caller) const {
  Call call("conv2d", caller);
  Value x(*this), w(weight);
  Conv conv = check(x, w, options.groups, options.stride, options.dilation, options.padding);
  int64_t channels = w.size(0);
  if (x.size(1) != w.size(1) * conv.groups) {
    fail(fmt::format("x is {} with {} channels, weight {} in {} groups expects {}", text_of(x),
                     x.size(1), text_of(w), conv.groups, w.size(1) * conv.groups));
  }
  if (channels % conv.groups != 0) {
    fail(fmt::format("{} output channels do not divide into {} groups", channels, conv.groups));
  }
  DType type = promote(x.dtype(), w.dtype()), result = options.dtype.value_or(type);
  const bool has_elements = x.node()->numel() > 0 && w.node()->numel() > 0;
  DType computed = type_of_node(type, result, conv.spatial <= 2 || has_elements);
  x = value::cast(x, computed), w = value::cast(w, computed);

  Dims shape{x.size(0), channels};
  for (int64_t i = 0; i < conv.spatial; ++i) {
    const auto [low, high] = conv.padding[i];
    int64_t size = x.size(2 + i), padded = add_sizes(size, add_sizes(low, high));
    if (padded < value::window_reach(conv.kernel[i], conv.dilation[i])) {
      fail(fmt::format("weight {} is larger than x {} with padding ({}, {}) in dim {}", text_of(w),
                       text_of(x), low, high, 2 + i));
    }
    shape.push_back(value::window_count(padded, conv.kernel[i], conv.stride[i], conv.dilation[i]));
  }

  check_size(shape, computed);
  Value out = x;
  if (conv.spatial <= 2 && is_float(computed)) {
    UOp node = UOp::make(Op::Conv, computed, {as_image(x).node(), as_image(w).node()},
                         to_ints(conv_arg(conv, shape)));
    out = value::reshape(node, shape);
  } else if (is_float(computed) && has_elements) {
    out = conv_of_volumes(x, w, conv, shape);
  } else {
    Pairs around{{0, 0}, {0, 0}};
    around.insert(around.end(), conv.padding.begin(), conv.padding.end());
    out = conv_by_windows(value::pad(x, around), w, conv);
  }
  return add_bias(value::cast(out, result), bias, channels);
}

Tensor Tensor::conv_transpose2d(const Tensor& weight, const Tensor& bias,
                                const ConvTransposeOptions& options, Caller caller) const {
  Call call("conv_transpose2d", caller);
  Value x(*this), w(weight);
  Conv conv = check(x, w, options.groups, options.stride, options.dilation, options.padding);
  Dims extra = value::per_dim(options.output_padding, conv.spatial, "output_padding");
  if (x.size(1) != w.size(0) || x.size(1) % conv.groups != 0) {
    fail(fmt::format("x is {} with {} channels, weight {} in {} groups expects {}", text_of(x),
                     x.size(1), text_of(w), conv.groups, w.size(0)));
  }
  const bool has_elements = x.node()->numel() > 0 && w.node()->numel() > 0;
  DType type = promote(x.dtype(), w.dtype()),
        computed = type_of_node(type, type, conv.spatial <= 2 || has_elements);
  x = value::cast(x, computed), w = value::cast(w, computed);
  int64_t channels = w.size(1) * conv.groups;
  Dims shape{x.size(0), channels};
  for (int64_t i = 0; i < conv.spatial; ++i) {
    auto [low, high] = conv.padding[i];
    if (extra[i] < 0 || extra[i] >= std::max(conv.stride[i], conv.dilation[i])) {
      fail(fmt::format(
          "output_padding {} of dim {} is not between 0 and its stride {} or dilation {}", extra[i],
          2 + i, conv.stride[i], conv.dilation[i]));
    }
    int64_t size = add_sizes(multiply_sizes(x.size(2 + i) - 1, conv.stride[i]),
                             value::window_reach(conv.kernel[i], conv.dilation[i]));
    size = add_sizes(add_sizes(size, extra[i]), -add_sizes(low, high));
    if (size <= 0)
      fail(fmt::format("padding ({}, {}) leaves nothing of dim {} of {}", low, high, 2 + i,
                       text_of(x)));
    shape.push_back(size);
  }
  check_size(shape, computed);
  Value out = x;
  bool images = is_float(computed) && product(shape) > 0 && has_elements;
  for (int64_t i = std::max<int64_t>(0, conv.spatial - 2); i < conv.spatial; ++i)
    images = images && extra[i] < conv.stride[i];
  if (images && conv.spatial <= 2) {
    // The gradient of a convolution with respect to its input, as which it was invented.
    UOp node = UOp::make(Op::ConvBackwardData, computed, {as_image(x).node(), as_image(w).node()},
                         to_ints(conv_arg(conv, shape)));
    return add_bias(value::cast(value::reshape(node, shape), type), bias, channels);
  }
  if (images && conv.spatial > 2)
    return add_bias(value::cast(transposed_conv_of_volumes(x, w, conv, extra, shape), type), bias,
                    channels);
  // Zeros between the elements, then a convolution with the flipped kernel.
  Dims flipped;
  for (int64_t i = 0; i < conv.spatial; ++i) {
    flipped.push_back(i + 3);
    out = with_zeros_between(out, conv, i, extra[i]);
  }
  int64_t g = conv.groups, in = w.size(0) / g, per_group = w.size(1);
  Dims grouped{g, in, per_group};
  grouped.insert(grouped.end(), conv.kernel.begin(), conv.kernel.end());
  Value kernel = value::move_axis(value::flip(value::reshape(w, grouped), flipped), 2, 1);
  Dims kernel_shape{channels, in};
  kernel_shape.insert(kernel_shape.end(), conv.kernel.begin(), conv.kernel.end());
  Tensor result = out.tensor().conv2d(value::reshape(kernel, kernel_shape), {},
                                      {.groups = g, .dilation = Ints(conv.dilation)}, caller);
  return add_bias(value::cast(result, type), bias, channels);
}

}  // namespace tinyshard
