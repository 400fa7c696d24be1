// Layer, RMS, batch and group norms with weights, and the gradients of inputs and weights.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

Sizes draw_rows(Draw& draw, int64_t elements) {
  const int64_t width =
      draw.pick<int64_t>({64, 192, 384, 768, 1000, 1024, 2048, 4096, 5120, 8192, 50257});
  return {{std::max<int64_t>(1, elements / width), std::min(width, elements)}, {}};
}

// [n, channels, height, width] of networks for images, no larger than asked for.
Sizes draw_images(Draw& draw, int64_t elements) {
  static const std::vector<std::pair<int64_t, int64_t>> kLayers = {
      {64, 112}, {64, 56}, {96, 55}, {256, 56}, {512, 28}, {1024, 14}, {2048, 7}, {32, 17}, {8, 9}};
  const auto layer = draw.pick(kLayers);
  const int64_t channels = layer.first;
  int64_t side = layer.second;
  while (channels * side * side > elements && side > 4) side /= 2;
  const int64_t images = std::max<int64_t>(1, elements / (channels * side * side));
  return {{images, channels, side, side}, {}};
}
Sizes draw_groups(Draw& draw, int64_t elements) {
  Sizes drawn = draw_images(draw, elements);
  drawn.numbers = {draw.pick<int64_t>({1, 2, 4, 8})};
  return drawn;
}

Step with_weights(const Case& of, int64_t width, size_t weights, Function function) {
  Step step{{numbers(of.sizes, of.dtype)}, std::move(function)};
  for (size_t i = 0; i < weights; ++i) step.inputs.push_back(numbers({width}, of.dtype));
  return step;
}

template <class Norm>
Tensor apply(Norm norm, const Tensors& v) {
  norm.weight = v[1];
  if constexpr (requires { norm.bias; }) norm.bias = v[2];
  return norm(v[0]);
}

Step layer_norm(const Case& of) {
  const int64_t width = of.sizes[1];
  return with_weights(
      of, width, 2, [width](const Tensors& v) { return Tensors{apply(nn::LayerNorm(width), v)}; });
}
Step rms_norm(const Case& of) {
  const int64_t width = of.sizes[1];
  return with_weights(of, width, 1,
                      [width](const Tensors& v) { return Tensors{apply(nn::RMSNorm(width), v)}; });
}
// By the statistics of the batch.
Step batch_norm(const Case& of) {
  const int64_t channels = of.sizes[1];
  return with_weights(of, channels, 2, [channels](const Tensors& v) {
    const TrainingMode on;
    return Tensors{apply(nn::BatchNorm(channels, {.track_running_stats = false}), v)};
  });
}
Step group_norm(const Case& of) {
  const int64_t channels = of.sizes[1], groups = of.numbers.at(0);
  return with_weights(of, channels, 2, [=](const Tensors& v) {
    return Tensors{apply(nn::GroupNorm(groups, channels), v)};
  });
}

}  // namespace

Kinds norm_kinds() {
  return {
      {"layer_norm", kFloats, draw_rows, layer_norm},
      {"layer_norm_grad", kFloats, draw_rows,
       [](const Case& c) { return gradient_of(layer_norm(c), 3); }},
      {"rms_norm", kFloats, draw_rows, rms_norm},
      {"rms_norm_grad", kFloats, draw_rows,
       [](const Case& c) { return gradient_of(rms_norm(c), 2); }},
      {"batch_norm", kFloats, draw_images, batch_norm},
      {"batch_norm_grad", kFloats, draw_images,
       [](const Case& c) { return gradient_of(batch_norm(c), 3); }},
      {"group_norm", kFloats, draw_groups, group_norm},
      {"group_norm_grad", kFloats, draw_groups,
       [](const Case& c) { return gradient_of(group_norm(c), 3); }},
  };
}

}  // namespace tinyshard::sweep
