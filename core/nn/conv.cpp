// All layers are one of two, for any number of spatial dims; Conv1d to
// 3d only spell out the kernel. With an even kernel, "same" padding puts
// the odd row behind: for a kernel of 4 that is 1 before and 2 after.
#include "core/nn/conv.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/bound_internal.h"
#include "core/nn/types_internal.h"

namespace tinyshard::nn {
namespace {

Ints square(const Ints& kernel) { return kernel.size() == 1 ? Ints{kernel[0], kernel[0]} : kernel; }
Ints cube(const Ints& kernel) {
  return kernel.size() == 1 ? Ints{kernel[0], kernel[0], kernel[0]} : kernel;
}

// (before, after) per dim from the last to the first, for a size that stays.
Ints same_padding(const Ints& kernel, const Ints& dilation, const Ints& stride) {
  if (std::ranges::any_of(stride.values, [](int64_t s) { return s != 1; })) {
    fail(fmt::format("same padding needs stride 1, not {}", to_string(stride.values)));
  }
  Dims out;
  for (size_t i = kernel.size(); i-- > 0;) {
    int64_t total = dilation[dilation.size() == 1 ? 0 : i] * (kernel[i] - 1);
    out.insert(out.end(), {total / 2, total - total / 2});
  }
  return out;
}

Tensor uniform(Dims shape, const Ints& kernel, double bound) {
  shape.insert(shape.end(), kernel.values.begin(), kernel.values.end());
  return Tensor::uniform(shape, -bound, bound).is_param_();
}

double bound_of(int64_t in_channels, const Ints& kernel) {
  return uniform_bound(in_channels * product(kernel.values));
}

void check_groups(int64_t in_channels, int64_t out_channels, int64_t groups) {
  if (groups < 1 || in_channels % groups != 0 || out_channels % groups != 0) {
    fail(fmt::format("{} groups do not divide {} input and {} output channels", groups, in_channels,
                     out_channels));
  }
}

}  // namespace

Conv::Conv(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
           const ConvLayerOptions& o) {
  Call call("Conv");
  check_groups(in_channels, out_channels, o.groups);
  options = {.groups = o.groups, .stride = o.stride, .dilation = o.dilation, .padding = o.padding};
  if (o.same) options.padding = same_padding(kernel_size, o.dilation, o.stride);
  double bound = bound_of(in_channels, kernel_size);
  weight = uniform({out_channels, in_channels / o.groups}, kernel_size, bound);
  if (o.bias) bias = uniform({out_channels}, {}, bound);
}

Tensor Conv::operator()(const Tensor& x, Caller caller) const {
  Call call("Conv", caller);
  return x.conv2d(weight_for(x, weight), weight_for(x, bias), options);
}

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
               const ConvLayerOptions& o)
    : Conv(in_channels, out_channels, kernel_size, o) {}

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
               const ConvLayerOptions& o)
    : Conv(in_channels, out_channels, square(kernel_size), o) {}

Conv3d::Conv3d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
               const ConvLayerOptions& o)
    : Conv(in_channels, out_channels, cube(kernel_size), o) {}

ConvTranspose::ConvTranspose(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
                             const ConvTransposeLayerOptions& o) {
  Call call("ConvTranspose");
  check_groups(in_channels, out_channels, o.groups);
  options = {.groups = o.groups,
             .stride = o.stride,
             .dilation = o.dilation,
             .padding = o.padding,
             .output_padding = o.output_padding};
  double bound = bound_of(in_channels, kernel_size);
  weight = uniform({in_channels, out_channels / o.groups}, kernel_size, bound);
  if (o.bias) bias = uniform({out_channels}, {}, bound);
}

Tensor ConvTranspose::operator()(const Tensor& x, Caller caller) const {
  Call call("ConvTranspose", caller);
  return x.conv_transpose2d(weight_for(x, weight), weight_for(x, bias), options);
}

ConvTranspose1d::ConvTranspose1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
                                 const ConvTransposeLayerOptions& o)
    : ConvTranspose(in_channels, out_channels, kernel_size, o) {}

ConvTranspose2d::ConvTranspose2d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
                                 const ConvTransposeLayerOptions& o)
    : ConvTranspose(in_channels, out_channels, square(kernel_size), o) {}

ConvTranspose3d::ConvTranspose3d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
                                 const ConvTransposeLayerOptions& o)
    : ConvTranspose(in_channels, out_channels, cube(kernel_size), o) {}

}  // namespace tinyshard::nn
