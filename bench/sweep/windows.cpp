// Convolutions over one to three dims, transposed ones too, pools, interpolation, and gradients.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

struct Layer {
  int64_t in, side, out, kernel, stride;
};
const std::vector<Layer> kSignals = {
    {80, 3000, 384, 3, 1}, {384, 3000, 384, 3, 2}, {64, 4096, 64, 2, 1}, {1, 16000, 64, 11, 5}};
const std::vector<Layer> kImages = {
    {3, 224, 64, 7, 2},   {64, 56, 64, 3, 1},   {64, 56, 256, 1, 1},   {256, 56, 512, 1, 2},
    {128, 56, 128, 3, 2}, {512, 14, 512, 3, 1}, {1024, 14, 512, 1, 1}, {3, 224, 768, 16, 16},
    {320, 32, 320, 3, 1}, {4, 64, 128, 3, 1},   {96, 28, 192, 3, 1},   {1, 28, 32, 5, 1}};
const std::vector<Layer> kVolumes = {{1, 64, 16, 3, 1},
                                     {16, 32, 32, 3, 1},
                                     {3, 56, 64, 3, 2},
                                     {32, 16, 64, 3, 2},
                                     {64, 8, 64, 1, 1}};
const std::vector<Layer> kDepthwise = {{96, 56, 96, 7, 1},
                                       {192, 28, 192, 7, 1},
                                       {32, 112, 32, 3, 1},
                                       {144, 56, 144, 5, 2},
                                       {672, 14, 672, 5, 1}};
const std::vector<Layer> kGrouped = {
    {128, 56, 128, 3, 1}, {256, 28, 256, 3, 2}, {64, 56, 128, 1, 1}, {320, 14, 320, 5, 1}};
const std::vector<Layer> kTransposed = {
    {128, 28, 64, 4, 2}, {64, 32, 64, 2, 2}, {256, 14, 128, 3, 1}, {16, 64, 3, 4, 2}};

// Sizes [n, channels, side...]; numbers: channels out, kernel, stride, groups.
std::function<Sizes(Draw&, int64_t)> layers(const std::vector<Layer>& table, int64_t dims,
                                            std::vector<int64_t> groups = {1}) {
  return [=](Draw& draw, int64_t elements) {
    Layer layer = draw.pick(table);
    const auto image = [&] { return layer.in * int64_t(std::pow(layer.side, dims)); };
    while (image() > elements && layer.side / 2 >= layer.kernel) layer.side /= 2;
    Sizes drawn{{std::max<int64_t>(1, elements / image()), layer.in}, {}};
    for (int64_t i = 0; i < dims; ++i) drawn.sizes.push_back(layer.side);
    const int64_t each = draw.pick(groups);
    drawn.numbers = {layer.out, layer.kernel, layer.stride, each == 0 ? layer.in : each};
    return drawn;
  };
}

struct Window {
  explicit Window(const Case& of)
      : out(of.numbers.at(0)),
        kernel(of.numbers.at(1)),
        stride(of.numbers.at(2)),
        groups(of.numbers.at(3)),
        in(of.sizes.at(1)),
        dims(of.sizes.size() - 2) {}
  int64_t padding() const { return stride == kernel ? 0 : (kernel - 1) / 2; }
  Tensor weight(int64_t first, int64_t second, DType dtype) const {
    Dims shape = {first, second};
    shape.insert(shape.end(), dims, kernel);
    return numbers(shape, dtype);
  }
  double taps() const { return std::pow(double(kernel), double(dims)); }
  int64_t out, kernel, stride, groups, in;
  size_t dims;
};

Step conv(const Case& of) {
  const Window w(of);
  return step_of({numbers(of.sizes, of.dtype), w.weight(w.out, w.in / w.groups, of.dtype)},
                 [w](const Tensors& v) {
                   const ConvOptions options{
                       .groups = w.groups, .stride = w.stride, .padding = w.padding()};
                   return v[0].conv2d(v[1], {}, options);
                 });
}
Step conv_transpose(const Case& of) {
  const Window w(of);
  return step_of({numbers(of.sizes, of.dtype), w.weight(w.in, w.out / w.groups, of.dtype)},
                 [w](const Tensors& v) {
                   const ConvTransposeOptions options{
                       .groups = w.groups, .stride = w.stride, .padding = w.padding()};
                   return v[0].conv_transpose2d(v[1], {}, options);
                 });
}

Kind conv_kind(std::string_view name, std::function<Sizes(Draw&, int64_t)> draw) {
  return {name, kFloats, std::move(draw), conv, [](const Case& c, const Step& step) {
            const Window w(c);
            const double results = double(step.function(step.inputs)[0].numel());
            return Work{moved(c, step).bytes,
                        2 * results * double(w.in) / double(w.groups) * w.taps()};
          }};
}
Kind conv_grad_kind(std::string_view name, std::function<Sizes(Draw&, int64_t)> draw) {
  return {name, kFloats, std::move(draw), [](const Case& c) { return gradient_of(conv(c), 2); },
          [](const Case& c, const Step& step) {
            const Window w(c);
            const double results = double(step.inputs.back().numel());
            return Work{moved(c, step).bytes,
                        4 * results * double(w.in) / double(w.groups) * w.taps()};
          }};
}
template <int kProducts>
Work transposed(const Case& of, const Step& step) {
  const Window w(of);
  const double inputs = double(step.inputs[0].numel());
  return {moved(of, step).bytes,
          2 * kProducts * inputs * double(w.out) / double(w.groups) * w.taps()};
}

// Sizes [n, channels, side...] of one to three dims; numbers: kernel, stride.
Sizes draw_pool(Draw& draw, int64_t elements) {
  const int64_t dims = draw.pick<int64_t>({1, 2, 2, 2, 3}), kernel = draw.between(2, 3);
  const int64_t channels = draw.pick<int64_t>({3, 16, 64, 96, 256, 512});
  const double fits = std::pow(double(elements) / double(channels), 1.0 / double(dims));
  const int64_t side = std::clamp<int64_t>(draw.pick<int64_t>({7, 14, 28, 55, 112, 1000}), 4,
                                           std::max<int64_t>(4, int64_t(fits)));
  const int64_t image = channels * int64_t(std::pow(side, dims));
  Sizes drawn{{std::max<int64_t>(1, elements / image), channels}, {kernel, draw.between(1, 2)}};
  for (int64_t i = 0; i < dims; ++i) drawn.sizes.push_back(side);
  return drawn;
}
Step max_pool(const Case& of) {
  const int64_t kernel = of.numbers.at(0), stride = of.numbers.at(1);
  const Dims window(of.sizes.size() - 2, kernel);
  return unary(of, [=](const Tensor& x) {
    return x.max_pool2d(window, {.stride = stride, .padding = kernel == 3 ? 1 : 0});
  });
}
Step avg_pool(const Case& of) {
  const int64_t stride = of.numbers.at(1);
  const Dims window(of.sizes.size() - 2, of.numbers.at(0));
  return unary(of, [=](const Tensor& x) { return x.avg_pool2d(window, {.stride = stride}); });
}

// Sizes [n, channels, height, width]; numbers: the new height and width, 1 for linear.
Sizes draw_resize(Draw& draw, int64_t elements) {
  const int64_t channels = draw.pick<int64_t>({3, 16, 64, 256});
  int64_t side = draw.pick<int64_t>({14, 32, 56, 64, 224});
  while (channels * side * side > elements && side > 8) side /= 2;
  const double scale = draw.pick({0.5, 1.5, 2.0, 3.0});
  const auto resized = int64_t(double(side) * scale), larger = std::max(side, resized);
  const int64_t images = std::max<int64_t>(1, elements / (channels * larger * larger));
  return {{images, channels, side, side}, {resized, resized, draw.below(2)}};
}
Step resize(const Case& of) {
  const Dims size = {of.numbers.at(0), of.numbers.at(1)};
  const auto mode = of.numbers.at(2) != 0 ? Interpolation::Linear : Interpolation::Nearest;
  return unary(of, [=](const Tensor& x) { return x.interpolate(size, mode); });
}

}  // namespace

Kinds window_kinds() {
  const auto signals = layers(kSignals, 1), images = layers(kImages, 2),
             volumes = layers(kVolumes, 3), depthwise = layers(kDepthwise, 2, {0}),
             grouped = layers(kGrouped, 2, {2, 4, 32}), turned = layers(kTransposed, 2),
             turned_signals = layers(kTransposed, 1);
  return {
      conv_kind("conv1d", signals),
      conv_grad_kind("conv1d_grad", signals),
      conv_kind("conv2d", images),
      conv_grad_kind("conv2d_grad", images),
      conv_kind("conv3d", volumes),
      conv_grad_kind("conv3d_grad", volumes),
      conv_kind("depthwise", depthwise),
      conv_grad_kind("depthwise_grad", depthwise),
      conv_kind("grouped_conv", grouped),
      conv_grad_kind("grouped_conv_grad", grouped),
      {"conv_transpose1d", kFloats, turned_signals, conv_transpose, transposed<1>},
      {"conv_transpose2d", kFloats, turned, conv_transpose, transposed<1>},
      {"conv_transpose2d_grad", kFloats, turned,
       [](const Case& c) { return gradient_of(conv_transpose(c), 2); }, transposed<2>},
      {"max_pool", kFloats, draw_pool, max_pool},
      {"max_pool_grad", kFloats, draw_pool, [](const Case& c) { return gradient_of(max_pool(c)); }},
      {"avg_pool", kFloats, draw_pool, avg_pool},
      {"avg_pool_grad", kFloats, draw_pool, [](const Case& c) { return gradient_of(avg_pool(c)); },
       filled},
      {"resize", kFloats, draw_resize, resize},
      {"resize_grad", kFloats, draw_resize, [](const Case& c) { return gradient_of(resize(c)); },
       filled},
  };
}

}  // namespace tinyshard::sweep
