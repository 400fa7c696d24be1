// Normalisations. Weights start at one and biases at zero; `affine = false` leaves them out. All of
// a 16-bit x is computed in f32, statistics and weights included, and rounded once to x's type.
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>

#include "core/nn/fields.h"

namespace tinyshard::nn {

struct NormOptions {
  double eps = 1e-5;
  bool affine = true;
};

// Over the last dims, which have this shape.
struct LayerNorm {
  explicit LayerNorm(const Ints& normalized_shape, const NormOptions& options = {});
  // Braces around one size are a list too, and no other LayerNorm.
  template <std::integral T>
  LayerNorm(std::initializer_list<T> sizes, const NormOptions& options = {})
      : LayerNorm(Ints(Dims(sizes.begin(), sizes.end())), options) {}
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight, bias;
  Dims normalized_shape;
  double eps;
  TS_FIELDS(weight, bias)
};

// LayerNorm over the channels of [n, channels, h, w].
struct LayerNorm2d : LayerNorm {
  using LayerNorm::LayerNorm;
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;
};

struct RmsNormOptions {
  double eps = 1e-6;
  bool affine = true;
};

// x / sqrt(mean(x^2) + eps) over the last dim.
struct RMSNorm {
  explicit RMSNorm(int64_t dim, const RmsNormOptions& options = {});
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight;
  double eps;
  TS_FIELDS(weight)
};

// Over groups of channels of [n, channels, spatial...]; the weights are per channel.
struct GroupNorm {
  GroupNorm(int64_t num_groups, int64_t num_channels, const NormOptions& options = {});
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight, bias;
  int64_t num_groups, num_channels;
  double eps;
  TS_FIELDS(weight, bias)
};

// A GroupNorm with a channel in each group.
struct InstanceNorm : GroupNorm {
  explicit InstanceNorm(int64_t num_features, const NormOptions& options = {})
      : GroupNorm(num_features, num_features, options) {}
};

struct BatchNormOptions {
  double eps = 1e-5;
  bool affine = true;
  bool track_running_stats = true;
  double momentum = 0.1;
};

// Over all dims of [n, channels, spatial...] but the channels. In TrainingMode by the statistics of
// the batch (of all devices), which it also learns; otherwise by the ones that it learned. What it
// learns is f32 at least.
struct BatchNorm {
  explicit BatchNorm(int64_t channels, const BatchNormOptions& options = {});
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  BatchNormOptions options;
  TS_FIELDS(weight, bias, running_mean, running_var, num_batches_tracked)
};
using BatchNorm2d = BatchNorm;
using BatchNorm3d = BatchNorm;

}  // namespace tinyshard::nn
