// Weights that layers start from are drawn where they lie: each device its part, and none the whole. The
// bits are those of one device.
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::drawn_weights_test {
namespace {

constexpr int64_t kIn = 256, kOut = 512;

class DrawnWeights : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  }
  void TearDown() override { Runtime::shutdown(); }
};

struct Placed {
  std::string name;
  int64_t parts;  // of the weight
  std::function<Tensor(nn::Linear&)> weight;
};

std::vector<Placed> all_ways() {
  const Mesh line = Mesh::world({{"data", 4}}), square = Mesh::world({{"data", 2}, {"model", 2}});
  return {
      {"whole on each", 1,
       [=](nn::Linear& l) {
         nn::data_parallel(l, line, "data");
         return l.weight;
       }},
      {"fully sharded", 4,
       [=](nn::Linear& l) {
         nn::fully_shard(l, line, "data");
         return l.weight;
       }},
      {"of a mesh of two axes", 2,
       [=](nn::Linear& l) {
         nn::fully_shard(l, square, "model");
         return l.weight;
       }},
      {"by columns, then by rows", 4,
       [=](nn::Linear& l) {
         l.weight.replace(l.weight.shard(square, {{"model", Shard(1)}}));
         nn::fully_shard(l, square, "data");
         return l.weight;
       }},
      {"in bf16", 4,
       [=](nn::Linear& l) {
         return l.weight.cast(DType::BF16).is_param_().shard(line, {{"data", Shard(1)}});
       }},
  };
}

TEST_F(DrawnWeights, EachDeviceDrawsItsPart) {
  for (const Placed& way : all_ways()) {
    nn::Linear layer(kIn, kOut, {.bias = false});
    const Tensor weight = way.weight(layer);
    layer.weight = Tensor();  // or it would be computed, too
    const PlanSummary plan = summarize(weight);
    const int64_t part = kIn * kOut * int64_t(itemsize(weight.dtype())) / way.parts;
    EXPECT_EQ(plan.collective_bytes, 0) << way.name;
    for (const DeviceMemory& device : plan.memory) {
      EXPECT_LE(device.peak_bytes(), part + 1024) << way.name << " " << device.device << "\n"
                                                  << explain(weight, true);
    }
  }
}

TEST_F(DrawnWeights, BitsAreThoseOfOneDevice) {
  for (const Placed& way : all_ways()) {
    Tensor::manual_seed(11);
    const nn::Linear alone(kIn, kOut, {.bias = false});
    Tensor::manual_seed(11);
    nn::Linear layer(kIn, kOut, {.bias = false});
    const Tensor weight = way.weight(layer);
    EXPECT_EQ(weight.to_vector<float>(), alone.weight.cast(weight.dtype()).to_vector<float>())
        << way.name;
  }
}

// Who placed it and who drew it see one value, also when the first is written over later.
TEST_F(DrawnWeights, TheParameterThatWasPlacedIsTheSame) {
  const Mesh mesh = Mesh::world({{"data", 4}});
  const Tensor w = Tensor::rand({8, 6}).is_param_();
  const Tensor placed = w.shard(mesh, {{"data", Shard(0)}});
  const Tensor later = w.shard(mesh, {{"data", Shard(1)}}) * 1;
  const std::vector<float> values = placed.to_vector<float>();
  EXPECT_EQ(w.to_vector<float>(), values);
  w.assign(w * 0).realize();
  EXPECT_EQ(placed.to_vector<float>(), values);
  EXPECT_EQ(later.to_vector<float>(), values);
  EXPECT_EQ(w.to_vector<float>(), std::vector<float>(48, 0.0F));
}

}  // namespace
}  // namespace tinyshard::drawn_weights_test
