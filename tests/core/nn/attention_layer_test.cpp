// MultiheadAttention against loops over heads, queries and keys; stochastic depth.
#include <cmath>

#include <gtest/gtest.h>

#include "core/nn/attention.h"
#include "core/nn/nn.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::attention_layer_test {
namespace {

constexpr int64_t kBatch = 2, kQueries = 3, kKeys = 5, kWidth = 8, kHeads = 2;

struct Matrix {
  std::vector<double> v;
  int64_t columns;
  double at(int64_t r, int64_t c) const { return v[size_t(r * columns + c)]; }
};
Matrix matrix(const Tensor& t) { return {t.to_vector<double>(), t.shape(-1)}; }

// out[b][q][c], where allowed(b, q, k) says what a query sees.
std::vector<double> by_hand(const nn::MultiheadAttention& m, const Tensor& query, const Tensor& key,
                            const Tensor& value,
                            const std::function<bool(int64_t, int64_t, int64_t)>& allowed) {
  const bool one = m.in_proj_weight.defined();
  const auto weight = [&](int64_t part, const Tensor& own) {
    return matrix(one ? m.in_proj_weight.shrink({{part * kWidth, (part + 1) * kWidth}, {0, kWidth}})
                      : own);
  };
  const Matrix wq = weight(0, m.q_proj_weight), wk = weight(1, m.k_proj_weight),
               wv = weight(2, m.v_proj_weight);
  const Matrix x = matrix(query), y = matrix(key), z = matrix(value),
               wo = matrix(m.out_proj.weight);
  const auto bias = m.in_proj_bias.to_vector<double>(), bo = m.out_proj.bias.to_vector<double>();
  const auto project = [&](const Matrix& from, int64_t row, const Matrix& w, int64_t c,
                           int64_t part) {
    double sum = bias[size_t(part * kWidth + c)];
    for (int64_t i = 0; i < from.columns; ++i) sum += from.at(row, i) * w.at(c, i);
    return sum;
  };
  std::vector<double> out;
  const int64_t d = kWidth / kHeads;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t q = 0; q < kQueries; ++q) {
      std::vector<double> joined(kWidth);
      for (int64_t h = 0; h < kHeads; ++h) {
        std::vector<double> e(kKeys);
        double total = 0;
        for (int64_t k = 0; k < kKeys; ++k) {
          double score = 0;
          for (int64_t c = h * d; c < (h + 1) * d; ++c)
            score += project(x, b * kQueries + q, wq, c, 0) * project(y, b * kKeys + k, wk, c, 1);
          e[size_t(k)] = allowed(b, q, k) ? std::exp(score / std::sqrt(double(d))) : 0;
          total += e[size_t(k)];
        }
        for (int64_t c = h * d; c < (h + 1) * d; ++c)
          for (int64_t k = 0; k < kKeys; ++k)
            joined[size_t(c)] += e[size_t(k)] / total * project(z, b * kKeys + k, wv, c, 2);
      }
      for (int64_t c = 0; c < kWidth; ++c) {
        double sum = bo[size_t(c)];
        for (int64_t i = 0; i < kWidth; ++i) sum += joined[size_t(i)] * wo.at(c, i);
        out.push_back(sum);
      }
    }
  }
  return out;
}

void expect_near(const Tensor& got, const std::vector<double>& want) {
  const auto values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], 2e-5) << i;
}

TEST(MultiheadAttention, IsALoopOverHeads) {
  Tensor::manual_seed(3);
  for (const bool other_widths : {false, true}) {
    nn::MultiheadAttention m(kWidth, kHeads,
                             other_widths
                                 ? nn::MultiheadAttentionOptions{.key_width = 6, .value_width = 4}
                                 : nn::MultiheadAttentionOptions{});
    m.in_proj_bias.assign(Tensor::randn({3 * kWidth}));
    m.out_proj.bias.assign(Tensor::randn({kWidth}));
    const Tensor q = Tensor::randn({kBatch, kQueries, kWidth}).realize(),
                 k = Tensor::randn({kBatch, kKeys, other_widths ? 6 : kWidth}).realize(),
                 v = Tensor::randn({kBatch, kKeys, other_widths ? 4 : kWidth}).realize();
    expect_near(m(q, k, v), by_hand(m, q, k, v, [](auto, auto, auto) { return true; }));
    const Tensor lengths = Tensor(
        std::vector<bool>{true, true, false, true, false, true, false, false, true, true}, {2, 5});
    const auto there = lengths.to_vector<int>();
    const auto has = [&](int64_t b, int64_t key) { return there[size_t(b * kKeys + key)] != 0; };
    expect_near(m(q, k, v, {.key_mask = lengths}),
                by_hand(m, q, k, v, [&](int64_t b, int64_t, int64_t key) { return has(b, key); }));
    expect_near(m(q, k, v, {.key_mask = lengths, .is_causal = true}),
                by_hand(m, q, k, v, [&](int64_t b, int64_t row, int64_t key) {
                  return has(b, key) && key <= row;
                }));
    expect_near(m(q, k, v, {.is_causal = true}),
                by_hand(m, q, k, v, [](auto, int64_t row, int64_t key) { return key <= row; }));
    const Tensor below = Tensor::ones({kQueries, kKeys}, DType::Bool).tril(1);
    expect_near(m(q, k, v, {.mask = below}),
                by_hand(m, q, k, v, [](auto, int64_t row, int64_t key) { return key <= row + 1; }));
    const Tensor never =
        below.where(0.0, -std::numeric_limits<double>::infinity()).cast(DType::F32);
    expect_near(m(q, k, v, {.mask = never, .key_mask = lengths}),
                by_hand(m, q, k, v, [&](int64_t b, int64_t row, int64_t key) {
                  return has(b, key) && key <= row + 1;
                }));
  }
}

TEST(MultiheadAttention, HasPyTorchsNamesAndIsTheSameDivided) {
  TINYSHARD_NEED_DEVICES(2);
  nn::MultiheadAttention m(kWidth, kHeads);
  const nn::StateDict names = nn::state_dict(m);
  EXPECT_EQ(names.count("in_proj_weight") + names.count("in_proj_bias") +
                names.count("out_proj.weight") + names.count("out_proj.bias"),
            4u);
  EXPECT_EQ(names.size(), 4u);
  const Tensor x = Tensor::randn({4, 6, kWidth}).realize();
  const auto whole = m(x).to_vector<double>();
  const Mesh mesh = Mesh::of(device_names(2), "d");
  nn::data_parallel(m, mesh, "d");
  const auto divided = m(x.shard(mesh, {{"d", Shard(0)}})).to_vector<double>();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(divided[i], whole[i], 1e-6);
  const auto message = [](const auto& call) { return test::message_of<UserError>(call); };
  EXPECT_NE(message([] { nn::MultiheadAttention(8, 3); }).find("does not divide into 3 heads"),
            std::string::npos);
  EXPECT_NE(
      message([&] { m(x, {.key_mask = Tensor::ones({4, 6}, DType::I32)}); }).find("must be bool"),
      std::string::npos);
}

TEST(StochasticDepth, LeavesOutRows) {
  const Tensor x = Tensor::ones({1000, 3}).realize();
  EXPECT_EQ(nn::stochastic_depth(x, 0.5).sum().item<float>(), 3000);
  TrainingMode on;
  const auto values = nn::stochastic_depth(x, 0.25).to_vector<float>();
  int kept = 0;
  for (size_t r = 0; r < 1000; ++r) {
    const float first = values[r * 3];
    EXPECT_TRUE(first == 0 || std::fabs(first - 4.0f / 3) < 1e-6f);
    EXPECT_EQ(values[r * 3 + 1], first);
    EXPECT_EQ(values[r * 3 + 2], first);
    kept += first != 0;
  }
  EXPECT_NEAR(kept, 750, 60);
  EXPECT_NE(test::message_of<UserError>([&] { nn::stochastic_depth(x, 1.5); }).find("no"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::attention_layer_test
