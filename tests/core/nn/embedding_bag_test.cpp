// Bags of rows against loops.
#include "core/nn/embedding_bag.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/nn/nn.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::embedding_bag_test {
namespace {

using nn::Bag;

const std::vector<std::vector<int32_t>> kBags{{3, 1, 3}, {}, {0}, {5, 4, 2, 1}, {7, 9}};
constexpr size_t kWidth = 3;

std::vector<double> by_hand(const std::vector<float>& table, Bag mode, bool weighed) {
  std::vector<double> out;
  size_t entry = 0;
  for (const auto& bag : kBags) {
    std::vector<double> sum(kWidth), most(kWidth, -1e300);
    for (const int32_t row : bag) {
      const double weight = weighed ? 0.5 + double(entry) : 1;
      ++entry;
      for (size_t c = 0; c < kWidth; ++c) {
        const double x = table[size_t(row) * kWidth + c];
        sum[c] += weight * x;
        most[c] = std::max(most[c], x);
      }
    }
    for (size_t c = 0; c < kWidth; ++c) {
      const double n = double(bag.size());
      out.push_back(bag.empty()         ? 0
                    : mode == Bag::Sum  ? sum[c]
                    : mode == Bag::Mean ? sum[c] / n
                                        : most[c]);
    }
  }
  return out;
}

void expect_near(const Tensor& got, const std::vector<double>& want) {
  const auto values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], 1e-5) << i;
}

TEST(EmbeddingBag, IsALoop) {
  std::vector<int32_t> flat, begins, padded;
  std::vector<float> weights, padded_weights;
  for (const auto& bag : kBags) {
    begins.push_back(int32_t(flat.size()));
    for (size_t i = 0; i < 4; ++i) {
      padded.push_back(i < bag.size() ? bag[i] : -1);
      padded_weights.push_back(i < bag.size() ? 0.5f + float(flat.size()) : 9.0f);
      if (i >= bag.size()) continue;
      weights.push_back(0.5f + float(flat.size()));
      flat.push_back(bag[i]);
    }
  }
  for (const Bag mode : {Bag::Sum, Bag::Mean, Bag::Max}) {
    const nn::EmbeddingBag bags(10, kWidth, {.mode = mode});
    const auto table = bags.weight.to_vector<float>();
    expect_near(bags(Tensor(padded, {5, 4})), by_hand(table, mode, false));
    expect_near(bags.ragged(Tensor(flat), Tensor(begins)), by_hand(table, mode, false));
    if (mode != Bag::Sum) continue;
    expect_near(bags(Tensor(padded, {5, 4}), Tensor(padded_weights, {5, 4})),
                by_hand(table, mode, true));
    expect_near(bags.ragged(Tensor(flat), Tensor(begins), Tensor(weights)),
                by_hand(table, mode, true));
  }
}

TEST(EmbeddingBag, HasGradientsAndIsTheSameDivided) {
  TINYSHARD_NEED_DEVICES(2);
  nn::EmbeddingBag bags(6, 2, {.mode = Bag::Mean});
  const Tensor index({{0, 1, -1}, {2, 2, 2}, {5, 1, 0}, {3, -1, -1}});
  const auto whole = bags(index).to_vector<double>();
  bags(index).sum().backward();
  const std::vector<double> want{0.5 + 1 / 3.0, 0.5 + 1 / 3.0, 1, 1, 0, 1 / 3.0};
  const auto gradient = bags.weight.grad().to_vector<double>();
  for (size_t r = 0; r < 6; ++r) EXPECT_NEAR(gradient[r * 2], want[r], 1e-6) << r;
  const Mesh mesh = Mesh::of(device_names(2), "d");
  nn::data_parallel(bags, mesh, "d");
  const auto divided = bags(index.shard(mesh, {{"d", Shard(0)}})).to_vector<double>();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(divided[i], whole[i], 1e-6);
}

TEST(EmbeddingBag, SaysWhatIsWrong) {
  const nn::EmbeddingBag mean(6, 2, {.mode = Bag::Mean});
  const auto message = [](const auto& call) { return test::message_of<UserError>(call); };
  EXPECT_NE(message([&] { mean(Tensor::ones({2, 2})); }).find("must be integers"),
            std::string::npos);
  EXPECT_NE(message([&] { mean(Tensor({1, 2})); }).find("of 2 dims"), std::string::npos);
  EXPECT_NE(message([&] { mean(Tensor({{1, 2}}), Tensor::ones({1, 2})); }).find("weights multiply"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::embedding_bag_test
