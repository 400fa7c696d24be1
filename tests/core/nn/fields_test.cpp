// Names and order of the tensors of a model, through every kind of container.
#include "core/nn/fields.h"

#include <array>

#include <gtest/gtest.h>

#include "core/nn/state_dict.h"

namespace tinyshard::fields_test {
namespace {

struct Leaf {
  Tensor weight = Tensor::empty(2), bias = Tensor::empty(1);
  TS_FIELDS(weight, bias)
};

struct Tree {
  explicit Tree(int blocks) : list(static_cast<size_t>(blocks)) {}
  Leaf first;
  std::vector<Leaf> list;
  std::array<Tensor, 2> pair = {Tensor::empty(1), Tensor::empty(1)};
  std::optional<Tensor> absent, present = Tensor::empty(1);
  std::unique_ptr<Leaf> pointer = std::make_unique<Leaf>();
  std::map<std::string, Tensor> named = {{"b", Tensor::empty(1)}, {"a", Tensor::empty(1)}};
  std::tuple<Leaf, Tensor> both = {Leaf(), Tensor::empty(1)};
  Tensor undefined;
  double not_listed = 3;
  TS_FIELDS(first, list, pair, absent, present, pointer, named, both, undefined)
};

struct Empty {
  TS_FIELDS()
};

std::vector<std::string> names(const auto& model, const std::string& prefix = {}) {
  std::vector<std::string> list;
  nn::for_each_tensor(model, prefix,
                      [&](const std::string& name, const Tensor&) { list.push_back(name); });
  return list;
}

TEST(Fields, AreNamedByPathInTheOrderOfTheMacro) {
  std::vector<std::string> expected = {
      "first.weight",  "first.bias",     "list.0.weight", "list.0.bias",
      "list.1.weight", "list.1.bias",    "pair.0",        "pair.1",
      "present",       "pointer.weight", "pointer.bias",  "named.a",
      "named.b",       "both.0.weight",  "both.0.bias",   "both.1"};
  EXPECT_EQ(names(Tree(2)), expected);
}

TEST(Fields, TakeAPrefix) {
  EXPECT_EQ(names(Leaf(), "model"), (std::vector<std::string>{"model.weight", "model.bias"}));
  EXPECT_EQ(names(Tensor::empty(1), "alone"), std::vector<std::string>{"alone"});
  EXPECT_TRUE(names(Empty()).empty());
}

TEST(Fields, AreSharedByCopiesOfAModel) {
  Leaf leaf;
  const Leaf copy = leaf;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(leaf.weight.state(), copy.weight.state());
  std::vector<Leaf> separate = nn::layers<Leaf>(2);
  EXPECT_NE(separate[0].weight.state(), separate[1].weight.state());
  for (int64_t n : {int64_t{-1}, int64_t{100'000'000'000}})
    EXPECT_THROW(nn::layers<Leaf>(n), UserError) << n;
}

TEST(Fields, GiveEachTiedTensorOnce) {
  Leaf leaf;
  leaf.bias = leaf.weight;
  EXPECT_EQ(nn::parameters(leaf).size(), 1u);
  EXPECT_EQ(nn::state_dict(leaf).size(), 2u);
}

}  // namespace
}  // namespace tinyshard::fields_test
