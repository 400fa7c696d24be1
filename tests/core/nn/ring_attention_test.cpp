// Attention with keys and values that travel: values and gradients of the attention of one device,
// what is sent, and what is held.
#include "core/nn/ring_attention.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::ring_attention_test {
namespace {

using testing::HasSubstr;

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

class RingAttention : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
  static void devices(int count, const std::string& kind = "CPU") {
    Runtime::shutdown();
    Runtime::configure({.devices = {kind}, .devices_per_rank = count});
  }
};

struct Case {
  std::string name;
  bool is_causal = false;
  int64_t heads = 4, groups = 4;
  int64_t rows = 24, columns = 24;
  DType type = DType::F64;
  double tolerance = 1e-11;
};

std::vector<Case> cases() {
  return {{.name = "plain"},
          {.name = "causal", .is_causal = true},
          {.name = "grouped heads", .groups = 2},
          {.name = "causal, one head of keys", .is_causal = true, .groups = 1},
          {.name = "more columns", .columns = 48},
          {.name = "causal, fewer columns", .is_causal = true, .rows = 48},
          {.name = "causal, more columns", .is_causal = true, .columns = 48},
          {.name = "f32", .is_causal = true, .type = DType::F32, .tolerance = 1e-5},
          {.name = "bf16", .is_causal = true, .type = DType::BF16, .tolerance = 3e-2}};
}

// The result, its place-weighted sum, and the gradients of q, k and v.
std::vector<std::vector<double>> run(const Case& c, const Mesh* mesh,
                                     const nn::RingAttentionOptions& how) {
  Tensor::manual_seed(5);
  auto drawn = [&](int64_t heads, int64_t length, int64_t width) {
    return Tensor::randn({2, heads, length, width}, DType::F64).cast(c.type).realize();
  };
  const Tensor q = drawn(c.heads, c.rows, 8), k = drawn(c.groups, c.columns, 8),
               v = drawn(c.groups, c.columns, 6), weights = drawn(c.heads, c.rows, 6);
  const DType in = mesh ? c.type : DType::F64;  // one device is exact
  auto attend = [&](const Tensor& a, const Tensor& b, const Tensor& d) {
    Tensor y = mesh ? nn::ring_attention(a, b, d, *mesh, "sequence",
                                         {c.is_causal, c.groups != c.heads, how.others})
                    : a.scaled_dot_product_attention(
                          b, d, {}, {.is_causal = c.is_causal, .enable_gqa = c.groups != c.heads});
    std::vector<Tensor> all = (y * weights.cast(in)).sum().gradient({a, b, d});
    all.push_back(y);
    return all;
  };
  Jit step = attend;
  std::vector<std::vector<double>> list;
  for (int i = 0; i < 3; ++i) {  // the later ones are replayed
    list.clear();
    for (const Tensor& t : step(q.cast(in), k.cast(in), v.cast(in)))
      list.push_back((mesh ? t.shard(*mesh) : t).to_vector<double>());
  }
  return list;
}

void expect_close(const std::vector<std::vector<double>>& got,
                  const std::vector<std::vector<double>>& want, double tolerance,
                  const std::string& what) {
  static constexpr const char* kNames[] = {"gradient of q", "gradient of k", "gradient of v",
                                           "values"};
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size()) << what;
    for (size_t j = 0; j < want[i].size(); ++j)
      ASSERT_NEAR(got[i][j], want[i][j], tolerance * (1 + std::abs(want[i][j])))
          << what << ", " << kNames[i] << " at " << j;
  }
}

TEST_F(RingAttention, IsTheAttentionOfOneDevice) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Case& c : cases()) {
    const auto want = run(c, nullptr, {});
    devices(8);
    for (int n : {1, 2, 3, 4, 8}) {
      const Mesh mesh({{"sequence", n}});
      expect_close(run(c, &mesh, {}), want, c.tolerance, c.name + " over " + std::to_string(n));
    }
    const Mesh by_batch({{"data", 2}, {"sequence", 4}});
    expect_close(run(c, &by_batch, {.others = {{"data", Shard(0)}}}), want, c.tolerance,
                 c.name + " and by batch");
    if (c.groups > 1) {
      const Mesh by_heads({{"sequence", 3}, {"model", 2}});
      expect_close(run(c, &by_heads, {.others = {{"model", Shard(1)}}}), want, c.tolerance,
                   c.name + " and by heads");
    }
    Runtime::shutdown();
  }
}

TEST_F(RingAttention, IsTheSameOverRanks) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  for (const Case& c : cases()) {
    const auto want = run(c, nullptr, {});
    const Mesh mesh = Mesh::world({{"sequence", -1}});
    expect_close(run(c, &mesh, {}), want, c.tolerance, c.name);
  }
}

TEST_F(RingAttention, SendsPartsAndHoldsFewOfThem) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (int n : {4, 8, 16}) {
    devices(n, "NULL");
    const Mesh mesh({{"sequence", n}});
    const int64_t length = 256 * n;
    auto parts = [&] {
      return Tensor::zeros({1, 8, length, 64})
          .contiguous()
          .shard(mesh, {{"sequence", Shard(2)}})
          .realize();
    };
    const Tensor q = parts(), k = parts(), v = parts();
    const Tensor y = nn::ring_attention(q, k, v, mesh, "sequence", {.is_causal = true});
    EXPECT_EQ(y.sharding().placements[0], Shard(2));
    const int64_t part = 8 * 256 * 64 * 4, scores = 8 * 256 * 256 * 4;
    const PlanSummary forward = summarize(y);
    EXPECT_EQ(forward.collective_bytes, 2 * (n - 1) * part) << n;
    std::vector<Tensor> all = y.square().sum().gradient({q, k, v});
    all.push_back(y);
    const PlanSummary both = summarize(all);
    EXPECT_EQ(both.collective_bytes, 6 * (n - 1) * part) << n;
    // Memory for two steps at a time: keys, values, scores and weights; later their gradients. All
    // keys and values would be 2 n parts, and all scores 4 n.
    EXPECT_LE(forward.arena_bytes, 2 * part + 4 * scores) << n;
    EXPECT_LE(both.arena_bytes, 8 * part + 4 * scores) << n;
  }
}

TEST_F(RingAttention, RefusesWhatDoesNotFit) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  devices(4);
  const Mesh mesh({{"sequence", 4}});
  auto message = [&](const Dims& q, const Dims& k, const Dims& v, DType type = DType::F32) {
    return test::message_of<UserError>([&] {
      nn::ring_attention(Tensor::ones(q), Tensor::ones(k, type), Tensor::ones(v), mesh, "sequence");
    });
  };
  EXPECT_THAT(message({2, 8, 4}, {2, 8, 5}, {2, 8, 4}),
              HasSubstr("query is f32[2, 8, 4], key is f32[2, 8, 5], value is f32[2, 8, 4]: need "
                        "[.., L, E]"));
  EXPECT_THAT(message({3, 8, 4}, {2, 8, 4}, {2, 8, 4}), HasSubstr("sizes of dim 0 do not fit"));
  EXPECT_THAT(message({2, 8, 4}, {2, 8, 4}, {2, 8, 4}, DType::F64),
              HasSubstr("need one float type"));
  EXPECT_THAT(message({2, 6, 4}, {2, 8, 4}, {2, 8, 4}),
              HasSubstr("dim 1 of argument 0, f32[2, 6, 4], does not divide: the axis \"sequence\" "
                        "has 4 devices"));
}

}  // namespace
}  // namespace tinyshard::ring_attention_test
