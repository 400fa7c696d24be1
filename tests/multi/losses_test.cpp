// A small GPT learns the same on every mesh: data, tensor and sequence parallel, alone and mixed, in
// one process and with one per device, against one device in f64 over 20 steps.
#include <cmath>
#include <map>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::losses_test {
namespace {

constexpr int64_t kVocabulary = 32, kWidth = 16, kHeads = 4, kShared = 2, kLength = 8, kBatch = 4,
                  kLayers = 2, kSteps = 20;

// Which mesh axis divides what; an empty name: none.
struct Plan {
  std::string name;
  std::vector<MeshAxis> axes;
  std::string data = {}, model = {}, sequence = {};  // activations between layers, by sequence
};

std::vector<Plan> plans() {
  return {
      {"data", {{"a", 4}}, "a"},
      {"tensor", {{"a", 4}}, "", "a"},
      {"sequence", {{"a", 4}}, "", "", "a"},
      {"tensor_and_sequence_on_one_axis", {{"a", 4}}, "", "a", "a"},
      {"data_and_tensor", {{"a", 2}, {"b", 2}}, "a", "b"},
      {"data_and_sequence", {{"a", 2}, {"b", 2}}, "a", "", "b"},
      {"sequence_and_tensor", {{"a", 2}, {"b", 2}}, "", "b", "a"},
      {"data_tensor_and_sequence", {{"a", 2}, {"b", 2}}, "a", "b", "b"},
  };
}

struct Gpt {
  std::map<std::string, Tensor> p;

  Gpt() {
    Tensor::manual_seed(4);
    auto add = [&](const std::string& name, const Dims& shape, double scale) {
      p[name] = (Tensor::randn(shape).cast(DType::F64) * scale).realize();
    };
    add("tokens", {kVocabulary, kWidth}, 0.5);
    add("places", {kLength, kWidth}, 0.5);
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string l = std::to_string(i) + ".";
      const int64_t head = kWidth / kHeads;
      add(l + "q", {kWidth, kWidth}, 0.3), add(l + "q_bias", {kWidth}, 0.1);
      add(l + "k", {kShared * head, kWidth}, 0.3), add(l + "v", {kShared * head, kWidth}, 0.3);
      add(l + "o", {kWidth, kWidth}, 0.3), add(l + "o_bias", {kWidth}, 0.1);
      add(l + "up", {4 * kWidth, kWidth}, 0.3), add(l + "up_bias", {4 * kWidth}, 0.1);
      add(l + "down", {kWidth, 4 * kWidth}, 0.15), add(l + "down_bias", {kWidth}, 0.1);
      add(l + "gain", {kWidth}, 0.2);
    }
  }

  void shard(const Plan& plan, const Mesh& mesh) {
    for (auto& [name, t] : p) {
      const std::string kind = name.substr(name.find('.') + 1);
      int dim = -1;
      for (const char* columns : {"q", "k", "v", "up", "q_bias", "up_bias", "tokens"})
        dim = kind == columns ? 0 : dim;
      if (kind == "o" || kind == "down") dim = 1;
      std::vector<AxisPlacement> place;
      if (!plan.model.empty() && dim >= 0) place.push_back({plan.model, Shard(dim)});
      t = t.shard(mesh, place).realize();
    }
  }

  template <class Between>
  Tensor loss(const Tensor& ids, const Tensor& labels, const Between& between) const {
    auto at = [&](int64_t i, const char* name) { return p.at(std::to_string(i) + "." + name); };
    auto by_head = [](const Tensor& t, int64_t heads) {
      return t.reshape({t.shape(0), t.shape(1), heads, t.shape(2) / heads}).transpose(1, 2);
    };
    Tensor x = between(p.at("tokens").embedding(ids) + p.at("places"));
    for (int64_t i = 0; i < kLayers; ++i) {
      const Tensor h = x.layernorm() * (at(i, "gain") + 1);
      const Tensor q = by_head(h.linear(at(i, "q").T(), at(i, "q_bias")), kHeads),
                   k = by_head(h.linear(at(i, "k").T()), kShared),
                   v = by_head(h.linear(at(i, "v").T()), kShared);
      const Tensor y =
          q.scaled_dot_product_attention(k, v, {}, {.is_causal = true, .enable_gqa = true});
      const Tensor joined = y.transpose(1, 2).reshape(x.shape());
      x = between(x + joined.linear(at(i, "o").T(), at(i, "o_bias")));
      const Tensor up = x.layernorm().linear(at(i, "up").T(), at(i, "up_bias")).gelu();
      x = between(x + up.linear(at(i, "down").T(), at(i, "down_bias")));
    }
    return x.layernorm().matmul(p.at("tokens").T()).sparse_categorical_crossentropy(labels);
  }
};

std::vector<double> train(const Plan* plan) {
  Gpt model;
  std::optional<Mesh> mesh;
  if (plan) {
    mesh = Mesh::world(plan->axes);
    model.shard(*plan, *mesh);
  }
  std::vector<AxisPlacement> place;
  if (plan && !plan->data.empty()) place.push_back({plan->data, Shard(0)});
  if (plan && !plan->sequence.empty()) place.push_back({plan->sequence, Shard(1)});
  auto between = [&](const Tensor& x) { return plan ? x.shard(*mesh, place) : x; };

  std::vector<Tensor> parameters;
  for (auto& [name, t] : model.p) parameters.push_back(t.is_param_());
  nn::optim::AdamW optim(parameters, {.lr = 1e-2});
  TrainingMode on;
  Jit step([&](const Tensor& ids, const Tensor& labels) {
    Tensor loss = model.loss(ids, labels, between);
    loss.backward();
    optim.step();
    optim.zero_grad();
    return loss;
  });
  std::vector<double> losses;
  for (int64_t i = 0; i < kSteps; ++i) {
    std::vector<int32_t> ids, labels;
    for (int64_t j = 0; j < kBatch * kLength; ++j) {
      ids.push_back(int32_t((j * j + 3 * j + 7 * i) % kVocabulary));
      labels.push_back(int32_t((j * j + 5 * j + 4 + 7 * i) % kVocabulary));
    }
    auto placed = [&](const std::vector<int32_t>& numbers) {
      return between(Tensor(numbers, {kBatch, kLength})).realize();
    };
    losses.push_back(step(placed(ids), placed(labels)).item<double>());
  }
  return losses;
}

TEST(Losses, AreThoseOfOneDevice) {
  if (world().ranks == 1) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  }
  ASSERT_EQ(world().devices.size(), 4u);
  const std::vector<double> one = train(nullptr);
  EXPECT_LT(one.back(), 0.8 * one.front()) << "it learns";
  for (const Plan& plan : plans()) {
    const std::vector<double> many = train(&plan);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(many[i], one[i], 1e-9 * one[i]) << plan.name << ", step " << i;
  }
  EXPECT_EQ(train(&plans().back()), train(&plans().back())) << "the same bits again";
}

}  // namespace
}  // namespace tinyshard::losses_test
