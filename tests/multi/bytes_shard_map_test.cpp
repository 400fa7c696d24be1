// Code per device sends what its collectives say and nothing else, forward and backward.
#include <fmt/format.h>

#include "tests/multi/bytes.h"

namespace tinyshard::bytes_shard_map_test {
namespace {

using ShardMapBytes = test::Planned;

const std::vector<AxisPlacement> kRows{{"d", Shard(0)}}, kColumns{{"d", Shard(1)}};

TEST_F(ShardMapBytes, NothingWithoutCollectives) {
  devices(8);
  const Tensor x = split({64, 64}, 0), w = split({64, 64}, -1);
  auto f = shard_map(mesh(), [](Tensor a, Tensor b) { return a.matmul(b).softmax(); },
                     {.in = {kRows, {}}, .out = {kRows}});
  EXPECT_EQ(sent(f(x, w)), 0);
}

// A column and a row weight: one all-reduce forward, one of the gradient of x.
TEST_F(ShardMapBytes, PairOfLayersHasOneAllReduceEachWay) {
  devices(4);
  const Tensor x = split({32, 64}, -1), up = split({64, 256}, 1), down = split({256, 64}, 0);
  auto f = shard_map(
      mesh(),
      [](Tensor in, Tensor a, Tensor b) { return all_reduce(in.matmul(a).relu().matmul(b), "d"); },
      {.in = {{}, kColumns, kRows}, .out = {{}}});
  const Tensor y = f(x, up, down);
  const double one = 2 * 3.0 / 4 * 32 * 64 * 4;
  EXPECT_EQ(sent(y), int64_t(one));
  std::vector<Tensor> all = y.square().sum().gradient({x, up, down});
  EXPECT_EQ(all[1].sharding().to_string(), "f32[64, 256@d:4]");
  EXPECT_EQ(all[2].sharding().to_string(), "f32[256@d:4, 64]");
  all.push_back(y);
  EXPECT_EQ(sent(all), int64_t(2 * one));
}

// A weight that is gathered by hand: its gradient goes back as a reduce-scatter.
TEST_F(ShardMapBytes, GatheredWeightHasAScatteredGradient) {
  devices(8);
  const Tensor x = split({64, 64}, 0), w = split({64, 256}, 0);
  auto f = shard_map(
      mesh(), [](Tensor rows, Tensor part) { return rows.matmul(all_gather(part, "d")).relu(); },
      {.in = {kRows, kRows}, .out = {kRows}});
  const Tensor y = f(x, w);
  const double one = 7.0 / 8 * 64 * 256 * 4;
  EXPECT_EQ(sent(y), int64_t(one));
  std::vector<Tensor> all = y.square().sum().gradient({w});
  EXPECT_EQ(all[0].sharding().to_string(), "f32[64@d:8, 256]");
  all.push_back(y);
  EXPECT_LE(sent(all), int64_t(2 * one * 1.01));
}

TEST_F(ShardMapBytes, PartsGoStraightToTheirReceivers) {
  devices(8);
  const Tensor x = split({64, 64}, 0);
  const double part = 8 * 64 * 4;
  auto of = [&](auto f) {
    auto mapped = shard_map(mesh(), f, {.in = {kRows}, .out = {kRows}});
    return sent(mapped(x));
  };
  EXPECT_EQ(of([](Tensor t) { return shift(t, "d"); }), int64_t(part));
  EXPECT_EQ(of([](Tensor t) { return shift(t, "d", -3); }), int64_t(part));
  EXPECT_EQ(of([](Tensor t) { return collective_permute(t, "d", {{0, 7}}); }), int64_t(part));
  EXPECT_EQ(of([](Tensor t) { return all_to_all(t, "d", 1, 0); }), int64_t(part * 7 / 8));
  EXPECT_EQ(of([](Tensor t) { return reduce_scatter(t, "d", 1); }), int64_t(part * 7 / 8));
}

TEST_F(ShardMapBytes, PlansNameTheCollectiveAndItsLine) {
  devices(8);
  auto mapped =
      shard_map(mesh(), [](Tensor t) { return shift(t, "d"); }, {.in = {kRows}, .out = {kRows}});
  const PlanSummary plan = summarize(mapped(split({64, 64}, 0)));
  ASSERT_EQ(plan.collective_items.size(), 1u);
  EXPECT_EQ(plan.collective_items[0].purpose, "shift of shard_map");
  EXPECT_EQ(plan.collective_items[0].axis, "d");
  EXPECT_EQ(plan.collective_items[0].source.find("bytes_shard_map_test.cpp:"), 0u);
}

}  // namespace
}  // namespace tinyshard::bytes_shard_map_test
