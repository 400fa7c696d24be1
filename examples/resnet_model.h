// A ResNet whose tensors have torchvision's names: "conv1.weight", "layer1.0.bn1.running_mean",
// "layer2.0.downsample.0.weight", "fc.bias".
//
// Weights are kept in default_float(); the result of a layer has its input's type, so images in bf16
// are computed in bf16, and norms in f32.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <tuple>
#include <utility>
#include <vector>

namespace resnet {

using namespace tinyshard;

struct Config {
  std::vector<int64_t> blocks;  // of each stage: three or four; the later ones halve the image
  int64_t width = 64;           // channels of the first stage
  bool bottleneck = false;
  int64_t channels = 3, classes = 10;
  bool large_images = false;  // begin with a quarter of the rows and columns
};

// 8 and 20 are the small ones for images of 32 x 32, the others those for photographs.
inline const std::vector<std::pair<std::string, Config>>& sizes() {
  static const std::vector<std::pair<std::string, Config>> kSizes = {
      {"8", {.blocks = {1, 1, 1}, .width = 16}},
      {"20", {.blocks = {3, 3, 3}, .width = 16}},
      {"18", {.blocks = {2, 2, 2, 2}}},
      {"34", {.blocks = {3, 4, 6, 3}}},
      {"50", {.blocks = {3, 4, 6, 3}, .bottleneck = true}},
  };
  return kSizes;
}

inline nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  return {in, out, kernel, {.stride = stride, .padding = kernel / 2, .bias = false}};
}

// Two convolutions, or three of which the outer ones only change the number of channels.
struct Block {
  Block(int64_t in, int64_t width, int64_t stride, bool bottleneck)
      : conv1(bottleneck ? conv(in, width, 1) : conv(in, width, 3, stride)),
        conv2(bottleneck ? conv(width, width, 3, stride) : conv(width, width, 3)),
        bn1(width),
        bn2(width) {
    const int64_t out = bottleneck ? 4 * width : width;
    if (bottleneck) conv3 = conv(width, out, 1), bn3.emplace(out);
    if (stride != 1 || in != out) downsample.emplace(conv(in, out, 1, stride), out);
  }

  nn::Conv2d conv1, conv2;
  nn::BatchNorm bn1, bn2;
  std::optional<nn::Conv2d> conv3;
  std::optional<nn::BatchNorm> bn3;
  std::optional<std::tuple<nn::Conv2d, nn::BatchNorm>> downsample;
  TS_FIELDS(conv1, bn1, conv2, bn2, conv3, bn3, downsample)

  Tensor operator()(const Tensor& x) const {
    Tensor h = bn2(conv2(bn1(conv1(x)).relu()));
    if (conv3) h = (*bn3)((*conv3)(h.relu()));
    if (!downsample) return (h + x).relu();
    const auto& [fewer_pixels, norm] = *downsample;
    return (h + norm(fewer_pixels(x))).relu();
  }
};

struct Model {
  explicit Model(const Config& c)
      : config(c),
        conv1(c.large_images ? conv(c.channels, c.width, 7, 2) : conv(c.channels, c.width, 3)),
        bn1(c.width),
        fc(channels(c, int64_t(c.blocks.size()) - 1), c.classes) {
    std::vector<Block>* stages[] = {&layer1, &layer2, &layer3, &layer4};
    int64_t in = c.width;
    for (size_t s = 0; s < c.blocks.size(); ++s) {
      for (int64_t i = 0; i < c.blocks[s]; ++i) {
        stages[s]->emplace_back(in, c.width << s, s > 0 && i == 0 ? 2 : 1, c.bottleneck);
        in = channels(c, int64_t(s));
      }
    }
  }
  static int64_t channels(const Config& c, int64_t stage) {
    return (c.width << stage) * (c.bottleneck ? 4 : 1);
  }

  Config config;
  nn::Conv2d conv1;
  nn::BatchNorm bn1;
  std::vector<Block> layer1, layer2, layer3, layer4;  // the last may have none
  nn::Linear fc;
  TS_FIELDS(conv1, bn1, layer1, layer2, layer3, layer4, fc)

  // images is [batch, channels, rows, columns]; the result scores the classes: [batch, classes].
  Tensor operator()(const Tensor& images) const {
    Tensor h = bn1(conv1(images)).relu();
    if (config.large_images) h = h.max_pool2d({3, 3}, {.stride = 2, .padding = 1});
    for (const std::vector<Block>* stage : {&layer1, &layer2, &layer3, &layer4})
      for (const Block& block : *stage) h = block(h);
    return fc(h.mean({2, 3}));
  }
};

// Puts the model on the mesh: copies, or, over an axis "model", of each block's widest pair of
// convolutions the first one's outputs and the second one's inputs divided.
inline void place(const Model& model, const Mesh& mesh) {
  auto is_model = [](const MeshAxis& axis) { return axis.name == "model"; };
  if (std::ranges::none_of(mesh.axes(), is_model)) {
    nn::data_parallel(model, mesh, "data");
  } else if (model.config.bottleneck) {
    nn::tensor_parallel(model, mesh, "model",
                        {{"layer*.*.conv2|bn2", Column}, {"layer*.*.conv3", Row}});
  } else {
    nn::tensor_parallel(model, mesh, "model",
                        {{"layer*.*.conv1|bn1", Column}, {"layer*.*.conv2", Row}});
  }
}

}  // namespace resnet
