// BatchNorm learns with the biased variance for its result, and the unbiased one for running_var,
// as others do. Running values are kept wide: they sum up over many steps.
#include "core/nn/norm.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/types_internal.h"
#include "core/tensor/function.h"

namespace tinyshard::nn {
namespace {

Tensor ones(const Ints& shape) { return Tensor::ones(shape).is_param_(); }
Tensor zeros(const Ints& shape) { return Tensor::zeros(shape).is_param_(); }

// [channels] as [1, channels, 1, ...], to meet [n, channels, spatial...].
Tensor per_channel(const Tensor& t, int64_t ndim) {
  Dims shape(static_cast<size_t>(ndim), 1);
  shape[1] = t.numel();
  return t.reshape(shape);
}

void check_channels(const Tensor& x, int64_t channels) {
  if (x.ndim() < 2 || x.shape(1) != channels) {
    fail(fmt::format("expected [n, {}, ...], got {}", channels, x.describe()));
  }
}

// Statistics of the channels of [n, channels, spatial...], as [1, channels, 1, ...]. Where images are long
// enough to keep a group of lanes at work, and all of them take longer to read than a kernel to start, each
// is looked at once: its mean and its variance come from one reading, and what holds of all images is made of
// these.
struct ChannelStatistics {
  static constexpr int64_t kLongImage = 64, kMuch = 1 << 20;  // elements

  Dims spatial;
  bool by_images;

  explicit ChannelStatistics(const Tensor& x) {
    int64_t places = 1;
    for (int64_t i = 2; i < x.ndim(); ++i) spatial.push_back(i), places *= x.shape(i);
    by_images = places >= kLongImage && x.numel() >= kMuch;
  }
  Tensor over_all(const Tensor& x) const {
    Dims axes = spatial;
    axes.insert(axes.begin(), 0);
    return x.mean(axes, true);
  }
  Tensor mean(const Tensor& x) const {
    return by_images ? x.mean(spatial, true).mean(0, true) : over_all(x);
  }
  // The variance of all is the mean of those of the images, and the variance of their means. Example:
  // {1, 3} and {5, 7} have variance 1 each and means 2 and 6, so 1 + 4 together.
  Tensor variance(const Tensor& x) const {
    if (!by_images) return over_all((x - mean(x)).square());
    const Tensor means = x.mean(spatial, true);
    return (x - means).square().mean(spatial, true).mean(0, true) +
           (means - mean(x)).square().mean(0, true);
  }
};

// Their variance, whose gradient leaves out its way through the mean: that is 0, and would be a pass over
// the values. Second derivatives go through the mean in backward().
class ChannelVariance : public Function {
 public:
  Tensor forward(const std::vector<Tensor>& inputs) override {
    x_ = inputs[0];
    return ChannelStatistics(x_).variance(x_);
  }
  std::vector<Tensor> backward(const Tensor& gradient) override {
    const double count = double(x_.numel()) / double(x_.shape(1));
    return {gradient * (2 / count) * (x_ - ChannelStatistics(x_).mean(x_))};
  }

 private:
  Tensor x_;
};

}  // namespace

LayerNorm::LayerNorm(const Ints& shape, const NormOptions& options)
    : normalized_shape(shape.values), eps(options.eps) {
  if (options.affine) weight = ones(shape), bias = zeros(shape);
}

Tensor LayerNorm::operator()(const Tensor& x, Caller caller) const {
  Call call("LayerNorm", caller);
  Dims shape = x.shape(), axes;
  size_t n = normalized_shape.size();
  if (shape.size() < n ||
      !std::equal(normalized_shape.begin(), normalized_shape.end(), shape.end() - n)) {
    fail(fmt::format("the last dims should be {}, got {}", to_string(normalized_shape),
                     x.describe()));
  }
  for (size_t i = 1; i <= n; ++i) axes.push_back(-int64_t(i));
  return in_wide(x, [&](const Tensor& wide) {
    Tensor y = wide.layernorm(axes, eps);
    return weight.defined() ? y * weight + bias : y;
  });
}

Tensor LayerNorm2d::operator()(const Tensor& x, Caller caller) const {
  Call call("LayerNorm2d", caller);
  return LayerNorm::operator()(x.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
}

RMSNorm::RMSNorm(int64_t dim, const RmsNormOptions& options) : eps(options.eps) {
  if (options.affine) weight = ones(dim);
}

Tensor RMSNorm::operator()(const Tensor& x, Caller caller) const {
  Call call("RMSNorm", caller);
  return in_wide(x, [&](const Tensor& wide) {
    Tensor y = wide * (wide.square().mean(-1, true) + eps).rsqrt();
    return weight.defined() ? y * weight : y;
  });
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, const NormOptions& options)
    : num_groups(groups), num_channels(channels), eps(options.eps) {
  Call call("GroupNorm");
  if (groups < 1 || channels % groups != 0) {
    fail(fmt::format("{} groups do not divide {} channels", groups, channels));
  }
  if (options.affine) weight = ones(channels), bias = zeros(channels);
}

Tensor GroupNorm::operator()(const Tensor& x, Caller caller) const {
  Call call("GroupNorm", caller);
  check_channels(x, num_channels);
  int64_t width = num_channels / num_groups;  // of a group: a batch of no rows has none to infer
  for (int64_t i = 2; i < x.ndim(); ++i) width *= x.shape(i);
  return in_wide(x, [&](const Tensor& wide) {
    Tensor y = wide.reshape({x.shape(0), num_groups, width}).layernorm(-1, eps).reshape(x.shape());
    if (!weight.defined()) return y;
    return y * per_channel(weight, x.ndim()) + per_channel(bias, x.ndim());
  });
}

BatchNorm::BatchNorm(int64_t channels, const BatchNormOptions& o) : options(o) {
  if (o.affine) weight = ones(channels), bias = zeros(channels);
  if (!o.track_running_stats) return;
  DType wide = promote(default_float(), DType::F32);
  running_mean = Tensor::zeros(channels, wide);
  running_var = Tensor::ones(channels, wide);
  num_batches_tracked = Tensor::zeros(1, DType::I64);
}

Tensor BatchNorm::operator()(const Tensor& x, Caller caller) const {
  Call call("BatchNorm", caller);
  check_channels(x, running_mean.defined() ? running_mean.numel() : x.shape(1));
  const bool learns = options.track_running_stats && is_training();
  if (learns && x.numel() == 0) fail(fmt::format("{} has no values to learn from", x.describe()));
  if (options.track_running_stats && !learns) {
    return x.batchnorm(weight, bias, running_mean, (running_var + options.eps).rsqrt());
  }
  Tensor wide = x.cast(accumulator(x.dtype()));
  Tensor mean = ChannelStatistics(wide).mean(wide).flatten();
  Tensor variance = Function::apply<ChannelVariance>({wide}).flatten();
  if (learns) {
    double keep = 1 - options.momentum;
    double unbiased = double(x.numel()) / double(std::max<int64_t>(x.numel() - x.shape(1), 1));
    auto learn = [keep](const Tensor& known, const Tensor& seen) {
      known.assign((known * keep + seen).cast(known.dtype()));
    };
    learn(running_mean, mean.detach() * options.momentum);
    learn(running_var, variance.detach() * (options.momentum * unbiased));
    num_batches_tracked.assign(num_batches_tracked + 1);
  }
  return x.batchnorm(weight, bias, mean, (variance + options.eps).rsqrt());
}

}  // namespace tinyshard::nn
