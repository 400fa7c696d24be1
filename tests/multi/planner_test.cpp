// Plans of whole graphs: their time against each op choosing alone and against all plans that
// there are; that links of different speed make different plans; and that values stay right.
#include "multi/planner.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "multi/link_model.h"
#include "multi/rewrite.h"
#include "tests/multi/bytes.h"
#include "tests/multi/one_device.h"

namespace tinyshard::test::planner_test {
namespace {

std::vector<UOp> nodes(const std::vector<Tensor>& tensors) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  return without_names(roots);
}

struct Costs {
  double alone = 0, together = 0;
  size_t choices = 0;  // that differ
  int attempts = 0;
};
Costs costs(const std::vector<UOp>& roots) {
  const Tried alone = try_plan(roots, {});
  Costs costs{alone.cost.seconds, alone.cost.seconds};
  if (!worth_planning(alone)) return costs;
  auto counted = [&](const Plan& plan) {
    ++costs.attempts;
    return try_plan(roots, plan);
  };
  const Plan plan = plan_whole(alone, counted, {.attempts = 300, .in_vain = 300});
  costs.choices = plan.size();
  costs.together = try_plan(roots, plan).cost.seconds;
  return costs;
}

// The least that any plan takes; nothing where there are more than `left` of them.
bool look_at_all(const std::vector<UOp>& roots, const Plan& plan, int& left, double& least) {
  const Tried tried = try_plan(roots, plan);
  least = std::min(least, tried.cost.seconds);
  for (const Decisions::Asked& asked : tried.asked) {
    const uint64_t key = occurrence_of(asked.question, asked.occurrence);
    if (asked.offers.size() < 2 || plan.contains(key)) continue;
    for (size_t option = 0; option < asked.offers.size(); ++option) {
      Plan next = plan;
      next[key] = option;
      if (!look_at_all(roots, next, left, least)) return false;
    }
    return true;
  }
  return --left >= 0;
}
std::optional<double> optimum(const std::vector<UOp>& roots, int most) {
  double least = try_plan(roots, {}).cost.seconds;
  return look_at_all(roots, {}, most, least) ? std::optional(least) : std::nullopt;
}

class Planner : public Planned {
 protected:
  // A mesh of hosts ("r") by devices of each ("c").
  void hosts(int count, int each) {
    devices(count, each);
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = count * each, .hosts = count});
  }
  Tensor over(const Tensor& x, const std::vector<Placement>& place) const {
    std::vector<AxisPlacement> named;
    for (size_t a = 0; a < place.size(); ++a) named.push_back({mesh().axes()[a].name, place[a]});
    return x.shard(mesh(), named);
  }
  static int64_t sent_over(const PlanSummary& plan, const std::string& axis) {
    int64_t bytes = 0;
    for (const CollectiveItem& c : plan.collective_items) bytes += c.axis == axis ? c.bytes : 0;
    return bytes;
  }
};

// --- links ---------------------------------------------------------------------------------------

TEST_F(Planner, AnAxisIsAsFastAsItsSlowestLink) {
  hosts(2, 4);
  LinkModel links;
  const Speeds speeds = speeds_of("NULL");
  EXPECT_EQ(links.along(mesh(), 0).bytes_per_s, speeds.network.bytes_per_s);
  EXPECT_EQ(links.along(mesh(), 1).bytes_per_s, speeds.process.bytes_per_s);
  // Three devices of one host, the last one beside one of the other.
  const std::vector<DeviceRef> all = mesh().devices();
  const Mesh across({{"d", 4}}, {all.begin() + 1, all.begin() + 5});
  EXPECT_EQ(links.along(across, 0).bytes_per_s, speeds.network.bytes_per_s);
  devices(2, 4);
  EXPECT_EQ(LinkModel().along(mesh(), 0).bytes_per_s, speeds.process.bytes_per_s);
}

TEST_F(Planner, CollectivesTakeTheirStepsAndTheirBytes) {
  const LinkSpeed link{.bytes_per_s = 1e9, .start_s = 4e-6, .step_s = 1e-6};
  EXPECT_NEAR(seconds_of(CollectiveOp::AllReduce, 1e6, 4, link), 1e-3 + 10e-6, 1e-12);
  EXPECT_NEAR(seconds_of(CollectiveOp::AllGather, 1e6, 4, link), 1e-3 + 7e-6, 1e-12);
  EXPECT_NEAR(seconds_of(CollectiveOp::AllToAll, 1e6, 4, link), 1e-3 + 5e-6, 1e-12);
  EXPECT_EQ(seconds_of(CollectiveOp::AllReduce, 1e6, 1, link), 0);
}

// A quarter of b on each of 2 x 2 devices. Where the axes are alike, what lacks a column travels: 64
// MiB along r. Where r crosses hosts, twice as much travels, all of it within them.
TEST_F(Planner, LessIsSentBetweenHostsThanWithinOne) {
  constexpr int64_t kSize = 4096, kQuarter = kSize * kSize;
  for (bool one_host : {true, false}) {
    one_host ? devices(2, 2) : hosts(2, 2);
    const Tensor a = stored({kSize, kSize}, {Replicate, Replicate}),
                 b = stored({kSize, kSize}, {Shard(0), Shard(1)});
    const PlanSummary plan = summarize(a.matmul(b));
    EXPECT_EQ(sent_over(plan, "r"), one_host ? kQuarter : 0);
    EXPECT_EQ(sent_over(plan, "c"), one_host ? 0 : 2 * kQuarter);
  }
}

// --- programs ------------------------------------------------------------------------------------

// A matrix divided by columns times one divided by rows is a Megatron pair where the dim between is
// wide. Here it is narrow, as of an adapter of low rank, and its halves are gathered in place of a
// sum of the whole result.
TEST_F(Planner, OfANarrowPairNoSumIsCompleted) {
  devices(8);
  const Tensor x = split({4096, 1024}, -1), a = split({1024, 16}, 1), b = split({16, 1024}, 0);
  const Tensor y = x.matmul(a).matmul(b);
  const Costs c = costs(nodes({y}));
  EXPECT_LT(c.together, c.alone / 4);
  EXPECT_NEAR(c.together, *optimum(nodes({y}), 1000), c.together / 1000);
  EXPECT_LE(sent(y), bound(7 * (1024 * 2 + 2 * 1024) * 4));
}

// By rows the product moves nothing, but then the result changes its split, which is 64 times x.
TEST_F(Planner, WhatIsNarrowMovesBeforeItGrows) {
  devices(8);
  const Tensor x = split({4096, 16}, 0), w = split({16, 1024}, -1);
  const Tensor y = over(x.matmul(w).gelu(), {Shard(1)});
  EXPECT_LE(sent(y), bound(7.0 * 4096 / 8 * 16 * 4));
  EXPECT_GT(double(try_plan(nodes({y}), {}).cost.seconds), 4 * costs(nodes({y})).together);
}

// Attention alone goes by heads and back to rows; the product after it wants neither.
TEST_F(Planner, AttentionLiesAsTheProductAfterItWants) {
  for (int n : {4, 8}) {
    devices(n);
    const Tensor q = split({1, 8, 512, 64}, 2), k = split({1, 8, 512, 64}, 2),
                 w = split({512, 512}, 0);
    const Tensor y = q.scaled_dot_product_attention(k, k, {}, {.is_causal = true});
    const std::vector<UOp> roots = nodes({y.transpose(1, 2).reshape({512, 512}).matmul(w)});
    const Costs c = costs(roots);
    EXPECT_LT(c.together, 0.85 * c.alone) << n;
    EXPECT_NEAR(c.together, *optimum(roots, 1000), c.together / 1000) << n;
  }
}

TEST_F(Planner, GradientsOfAnMlpInParts) {
  for (int n : {4, 8}) {
    devices(n);
    const Tensor x = split({512, 256}, 0), up = split({256, 1024}, 0), down = split({1024, 256}, 0);
    const Tensor loss = x.matmul(up).gelu().matmul(down).square().sum();
    const Costs c = costs(nodes(loss.gradient({x, up, down})));
    EXPECT_LT(c.together, 0.95 * c.alone) << n;
  }
}

// Sums of gradients that go to storages are no reason to look for another plan.
TEST_F(Planner, DataParallelTrainingIsNotSearched) {
  devices(4);
  const Tensor x = split({512, 64}, 0);
  Tensor w = split({64, 64}, -1), v = split({64, 64}, -1);
  const std::vector<Tensor> d = x.matmul(w).gelu().matmul(v).square().sum().gradient({w, v});
  w.assign(w - d[0] * 0.1);
  v.assign(v - d[1] * 0.1);
  const Tried alone = try_plan(nodes({w, v}), {});
  EXPECT_FALSE(alone.asked.empty());
  EXPECT_GT(alone.cost.seconds, 0);
  EXPECT_FALSE(worth_planning(alone));
}

// Products with weights that lie anywhere, some with a GELU or a residual between, some brought
// elsewhere at the end: drawn, and compared with the best of all plans.
TEST_F(Planner, DrawnChainsComeNearToTheBestPlan) {
  std::mt19937 random(7);
  auto pick = [&](auto... of) {
    const auto all = std::to_array({of...});
    return all[random() % all.size()];
  };
  auto drawn = [&] {
    std::vector<Placement> place(mesh().axes().size());
    for (Placement& p : place) {
      const int dim = pick(-1, 0, 1);
      if (dim >= 0) p = Shard(dim);
    }
    return place;
  };
  Costs sum;
  double least = 0, worst = 1;
  int programs = 0, alone_is_best = 0, together_is_best = 0;
  for (int i = 0; i < 200; ++i) {
    const bool grid = i % 4 == 3;
    grid ? devices(2, 2) : devices(pick(2, 4, 8));
    int64_t inner = pick(16, 64, 512, 1024);
    Tensor x = stored({pick(64, 512, 4096), inner}, drawn());
    const int products = grid ? 2 : pick(2, 3);
    for (int p = 0; p < products; ++p) {
      const int64_t next = pick(16, 64, 512, 1024);
      Tensor y = x.matmul(stored({inner, next}, drawn()));
      if (pick(0, 1) == 1) y = y.gelu();
      if (next == inner && pick(0, 1) == 1) y = y + x;
      x = y, inner = next;
    }
    if (pick(0, 1) == 1) x = over(x, drawn());
    const std::vector<UOp> roots = nodes({x});
    const std::optional<double> best = optimum(roots, 3000);
    if (!best) continue;
    const Costs c = costs(roots);
    EXPECT_LE(c.together, c.alone * (1 + 1e-9)) << i;
    ++programs;
    sum.alone += c.alone, sum.together += c.together, least += *best;
    alone_is_best += c.alone < *best * 1.02;
    together_is_best += c.together < *best * 1.02;
    worst = std::max(worst, c.together / *best);
  }
  EXPECT_GE(programs, 190);
  EXPECT_GT(sum.alone, 1.5 * least);
  EXPECT_LT(sum.together, 1.02 * least);
  EXPECT_LT(worst, 1.4);
  EXPECT_LT(alone_is_best, 0.6 * programs);
  EXPECT_GT(together_is_best, 0.93 * programs);
  RecordProperty(
      "figures",
      fmt::format("{} programs: {:.1f} us alone, {:.1f} together, {:.1f} at best; best {} "
                  "and {} times, at worst {:.2f} of it",
                  programs, sum.alone * 1e6, sum.together * 1e6, least * 1e6, alone_is_best,
                  together_is_best, worst));
}

// --- values --------------------------------------------------------------------------------------

using PlannerValues = OnDevices<4, testing::Test>;

TEST_F(PlannerValues, AreThoseOfOneDevice) {
  std::mt19937 random(11);
  Tensor::manual_seed(3);
  const Mesh mesh = Mesh::world({{"d", 4}});
  int planned = 0;
  for (int i = 0; i < 60; ++i) {
    auto drawn = [&](const Tensor& x) {
      const int dim = int(random() % 3);
      return dim == 2 ? x.shard(mesh).realize() : x.shard(mesh, {{"d", Shard(dim)}}).realize();
    };
    auto size = [&] { return std::array<int64_t, 3>{4, 96, 250}[random() % 3]; };
    const int64_t m = size(), k = size(), n = size(), o = size();
    const std::vector<Tensor> one{Tensor::randn({m, k}).realize(), Tensor::randn({k, n}).realize(),
                                  Tensor::randn({n, o}).realize()};
    std::vector<Tensor> many;
    for (const Tensor& t : one) many.push_back(drawn(t));
    auto run = [](const std::vector<Tensor>& x) {
      const Tensor y = x[0].matmul(x[1]).tanh().matmul(x[2]);
      std::vector<Tensor> all = y.square().mean().gradient(x);
      all.push_back(y);
      return all;
    };
    const std::vector<Tensor> want = run(one), got = run(many);
    planned += costs(nodes(got)).choices > 0;
    Tensor::realize(got);
    for (size_t j = 0; j < got.size(); ++j)
      expect_same(got[j], want[j], 1e-4, fmt::format("program {}, value {}", i, j));
  }
  EXPECT_GT(planned, 10);
}

}  // namespace
}  // namespace tinyshard::test::planner_test
