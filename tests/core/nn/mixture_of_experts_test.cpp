// Mixtures of experts: values and slopes of plain loops, the losses of one device on any mesh, and
// what tokens cost to send.
#include "core/nn/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::mixture_of_experts_test {
namespace {

using testing::HasSubstr;

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

class MixtureOfExperts : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    set_default_float(DType::F64);
  }
  void TearDown() override {
    set_default_float(DType::F32);
    Runtime::shutdown();
  }
  static void devices(int count, const std::string& kind = "CPU") {
    Runtime::shutdown();
    Runtime::configure({.devices = {kind}, .devices_per_rank = count});
  }
};

// --- plain loops ---------------------------------------------------------------------------------

struct Plain {
  int64_t batch, sequence, width, hidden, experts, top_k, room;
  bool gated, normalize;
  std::vector<double> x, router, up, gate, down;

  double silu(double v) const { return v / (1 + std::exp(-v)); }
  double gelu(double v) const {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  }

  // Adds weight * expert e of the token to out.
  void add(const double* token, int64_t e, double weight, double* out) const {
    for (int64_t h = 0; h < hidden; ++h) {
      double a = 0, b = 0;
      for (int64_t i = 0; i < width; ++i) {
        a += token[i] * up[size_t((e * width + i) * hidden + h)];
        if (gated) b += token[i] * gate[size_t((e * width + i) * hidden + h)];
      }
      const double value = gated ? silu(b) * a : gelu(a);
      for (int64_t i = 0; i < width; ++i)
        out[i] += weight * value * down[size_t((e * hidden + h) * width + i)];
    }
  }

  struct Result {
    std::vector<double> y;
    double balance = 0;
    int dropped = 0;
  };
  Result run() const {
    Result r{std::vector<double>(x.size(), 0)};
    std::vector<double> mean(size_t(experts), 0), share(size_t(experts), 0);
    for (int64_t b = 0; b < batch; ++b) {
      std::vector<std::vector<double>> odds;
      std::vector<std::vector<int64_t>> chosen;
      for (int64_t t = 0; t < sequence; ++t) {
        const double* token = &x[size_t((b * sequence + t) * width)];
        std::vector<double> p(size_t(experts), 0);
        double sum = 0;
        for (int64_t e = 0; e < experts; ++e) {
          for (int64_t i = 0; i < width; ++i)
            p[size_t(e)] += token[i] * router[size_t(e * width + i)];
          sum += p[size_t(e)] = std::exp(p[size_t(e)]);
        }
        for (int64_t e = 0; e < experts; ++e) mean[size_t(e)] += p[size_t(e)] /= sum;
        std::vector<int64_t> order(size_t(experts), 0);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order,
                                 [&](int64_t c, int64_t d) { return p[size_t(c)] > p[size_t(d)]; });
        order.resize(size_t(top_k));
        odds.push_back(p);
        chosen.push_back(order);
      }
      std::vector<int64_t> taken(size_t(experts), 0);
      for (int64_t k = 0; k < top_k; ++k) {
        for (int64_t t = 0; t < sequence; ++t) {
          const int64_t e = chosen[size_t(t)][size_t(k)];
          share[size_t(e)] += 1;
          if (taken[size_t(e)]++ >= room) {
            ++r.dropped;
            continue;
          }
          double all = normalize ? 0 : 1;
          for (int64_t other : chosen[size_t(t)]) {
            if (normalize) all += odds[size_t(t)][size_t(other)];
          }
          const size_t at = size_t((b * sequence + t) * width);
          add(&x[at], e, odds[size_t(t)][size_t(e)] / all, &r.y[at]);
        }
      }
    }
    for (int64_t e = 0; e < experts; ++e)
      r.balance += share[size_t(e)] / double(batch * sequence * top_k) * mean[size_t(e)] /
                   double(batch * sequence) * double(experts);
    return r;
  }
};

struct Case {
  int64_t top_k;
  std::optional<double> factor;
  bool gated, normalize;
  int64_t room;
};

TEST_F(MixtureOfExperts, HasTheValuesAndSlopesOfLoops) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  for (const Case& c : {Case{2, 1.0, true, true, 4}, Case{1, 1.25, false, false, 3},
                        Case{3, std::nullopt, true, true, 7}, Case{2, 0.4, true, false, 2}}) {
    Tensor::manual_seed(11);
    nn::MixtureOfExperts moe(5, 6, 4,
                             {.top_k = c.top_k,
                              .capacity_factor = c.factor,
                              .normalize = c.normalize,
                              .gated = c.gated});
    EXPECT_EQ(moe.capacity(7), c.room);
    Tensor x = Tensor::randn({3, 7, 5}).realize();
    auto values = [](const Tensor& t) {
      return t.defined() ? t.to_vector<double>() : std::vector<double>{};
    };
    const Plain plain{3,
                      7,
                      5,
                      6,
                      4,
                      c.top_k,
                      c.room,
                      c.gated,
                      c.normalize,
                      values(x),
                      values(moe.router.weight),
                      values(moe.experts.up),
                      values(moe.experts.gate),
                      values(moe.experts.down)};
    const Plain::Result want = plain.run();
    EXPECT_EQ(want.dropped > 0, c.factor.has_value()) << "the case drops what it is to drop";
    auto [y, balance] = moe(x);
    EXPECT_EQ(y.shape(), x.shape());
    const std::vector<double> got = y.to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want.y[i], 1e-12) << i;
    EXPECT_NEAR(balance.item<double>(), want.balance, 1e-12);

    // Slopes of sum(y * weights) + balance, by differences of the loops.
    const std::vector<double> weights = Tensor::randn({3, 7, 5}).to_vector<double>();
    auto loss_of = [&](const Plain& p) {
      const Plain::Result r = p.run();
      return std::inner_product(r.y.begin(), r.y.end(), weights.begin(), r.balance);
    };
    std::vector<Tensor> targets{x, moe.router.weight, moe.experts.up, moe.experts.down};
    if (c.gated) targets.push_back(moe.experts.gate);
    auto [again, balance_again] = moe(x);
    const Tensor loss = (again * Tensor(weights, {3, 7, 5})).sum() + balance_again;
    const std::vector<Tensor> slopes = loss.gradient(targets);
    std::vector<double> Plain::* fields[] = {&Plain::x, &Plain::router, &Plain::up, &Plain::down,
                                             &Plain::gate};
    for (size_t f = 0; f < targets.size(); ++f) {
      const std::vector<double> slope = slopes[f].to_vector<double>();
      for (size_t i = 0; i < slope.size(); i += 3) {
        Plain above = plain, below = plain;
        (above.*fields[f])[i] += 1e-6;
        (below.*fields[f])[i] -= 1e-6;
        EXPECT_NEAR(slope[i], (loss_of(above) - loss_of(below)) / 2e-6, 1e-7) << f << " " << i;
      }
    }
  }
}

// --- training ------------------------------------------------------------------------------------

struct Block {
  nn::Linear in{6, 8};
  nn::MixtureOfExperts moe;
  nn::Linear out{8, 6};
  explicit Block(const nn::MixtureOfExpertsOptions& options) : moe(8, 12, 4, options) {}
  TS_FIELDS(in, moe, out)
};

struct Training {
  std::string name;
  nn::MixtureOfExpertsOptions options = {};
  int64_t batch = 8;
  bool captured = true, fully_shard = false, checkpoint = false;
};

bool has(const Mesh& mesh, const std::string& axis) {
  return std::ranges::any_of(mesh.axes(), [&](const MeshAxis& a) { return a.name == axis; });
}

// Returns the losses of 20 steps, and the sums of all parameters behind them.
std::vector<double> losses(const Training& t, const std::optional<Mesh>& mesh) {
  Tensor::manual_seed(3);
  std::vector<Block> model = nn::layers<Block>(2, t.options);
  std::vector<Tensor> params = nn::parameters(model);
  Tensor::realize(params);
  if (mesh) {
    nn::expert_parallel(model, *mesh, "expert", has(*mesh, "model") ? "model" : "");
    if (t.fully_shard) nn::fully_shard(model, *mesh, "data");
  }
  nn::optim::AdamW optim(params, {.lr = 1e-2});
  auto forward = [&](const Tensor& in) {
    Tensor x = in, balance = Tensor(0.0);
    for (const Block& block : model) {
      auto [y, term] = block.moe(block.in(x).gelu());
      x = x + block.out(y);
      balance = balance + term;
    }
    return std::pair(x, balance);
  };
  auto run = [&](const Tensor& in) {
    TrainingMode on;
    optim.zero_grad();
    Tensor x = in;
    if (mesh) x = has(*mesh, "data") ? x.shard(*mesh, {{"data", Shard(0)}}) : x.shard(*mesh);
    auto [y, balance] = forward(x);
    Tensor loss = ((y - x.roll(1, 1)).square().mean() + balance * 0.01).backward();
    nn::clip_grad_norm(params, 0.5);
    optim.step();
    return loss;
  };
  Jit step = run;
  std::vector<double> list;
  for (int i = 0; i < 20; ++i) {
    Tensor in = ((Tensor::arange(t.batch * 5 * 6) * (7 + i % 3)) % 19).cast(DType::F64) / 19.0;
    in = in.reshape({t.batch, 5, 6}).realize();
    list.push_back((t.captured ? step(in) : run(in)).item<double>());
  }
  for (const Tensor& p : params) list.push_back(p.sum().item<double>());
  return list;
}

void expect_equal(const std::vector<double>& a, const std::vector<double>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-9 * std::max(1.0, std::abs(b[i]))) << what << ", value " << i;
}

TEST_F(MixtureOfExperts, TrainsAsOnOneDevice) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const std::vector<Training> trainings{
      {.name = "top 2"},
      {.name = "nothing dropped", .options = {.top_k = 1, .capacity_factor = std::nullopt}},
      {.name = "step by step", .options = {.capacity_factor = 0.5}, .captured = false},
      {.name = "rows that do not divide", .batch = 3},
      {.name = "fully sharded", .fully_shard = true},
  };
  for (const Training& t : trainings) {
    const std::vector<double> one = losses(t, {});
    EXPECT_LT(one[19], one[0]) << t.name;
    devices(8);
    std::vector<Mesh> meshes{Mesh({{"data", 2}, {"expert", 2}}),
                             Mesh({{"data", 2}, {"expert", 2}, {"model", 2}})};
    if (!t.fully_shard) {
      meshes.push_back(Mesh({{"expert", 4}}));
      meshes.push_back(Mesh({{"model", 3}, {"expert", 2}}));
    }
    for (const Mesh& mesh : meshes)
      expect_equal(losses(t, mesh), one, t.name + " on " + mesh.to_string());
    Runtime::shutdown();
  }
}

TEST_F(MixtureOfExperts, TrainsOverRanks) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  for (const Training& t :
       {Training{.name = "top 2"}, Training{.name = "rows that do not divide", .batch = 3}}) {
    const std::vector<double> one = losses(t, {});
    expect_equal(losses(t, Mesh::world({{"data", -1}, {"expert", 2}})), one, t.name);
    expect_equal(losses(t, Mesh::world({{"expert", -1}})), one, t.name + ", experts alone");
  }
}

// --- bytes ---------------------------------------------------------------------------------------

TEST_F(MixtureOfExperts, SendsTokensAndNoWeights) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  set_default_float(DType::F32);
  for (int n : {4, 8}) {
    devices(n, "NULL");
    const Mesh mesh({{"expert", n}});
    nn::MixtureOfExperts moe(256, 1024, 16, {.top_k = 2, .capacity_factor = 1.0});
    nn::expert_parallel(moe, mesh, "expert");
    Tensor::realize(nn::parameters(moe));
    const Tensor x =
        Tensor::zeros({16, 128, 256}).contiguous().shard(mesh, {{"expert", Shard(0)}}).realize();
    auto [y, balance] = moe(x);
    // Two choices of each token that a device has, of which so many go to others, and back.
    const double tokens = 16.0 * 128 / n, way = 2 * tokens * 256 * 4 * (n - 1) / n;
    const PlanSummary forward = summarize(y);
    EXPECT_EQ(forward.collective_kinds.at("all_to_all over expert"), int64_t(2 * way)) << n;
    EXPECT_EQ(forward.collective_bytes, int64_t(2 * way)) << n;

    std::vector<Tensor> of = nn::parameters(moe);
    of.push_back(x);
    std::vector<Tensor> all = (y.square().sum() + balance).gradient(of);
    EXPECT_EQ(all[1].sharding().to_string(), "f32[16@expert:" + std::to_string(n) + ", 256, 1024]");
    const PlanSummary both = summarize(all);
    EXPECT_EQ(both.collective_kinds.at("all_to_all over expert"), int64_t(4 * way)) << n;
    // Beside them the gradient of the router, and shares and probabilities of experts.
    const double router = 2.0 * (n - 1) / n * 16 * 256 * 4;
    EXPECT_LE(both.collective_bytes, int64_t(4 * way + router + 1024)) << n;
  }
}

TEST_F(MixtureOfExperts, RefusesWhatCannotBe) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  auto message = [](auto f) { return test::message_of<UserError>(f); };
  EXPECT_THAT(message([] { nn::MixtureOfExperts(8, 8, 4, {.top_k = 5}); }),
              HasSubstr("MixtureOfExperts: top_k is 5 of 4 experts"));
  EXPECT_THAT(message([] { nn::MixtureOfExperts(8, 0, 4); }),
              HasSubstr("width 8, hidden 0 and experts 4"));
  EXPECT_THAT(message([] { nn::MixtureOfExperts(8, 8, 4, {.capacity_factor = 0.0}); }),
              HasSubstr("capacity_factor is 0, which leaves no room"));
  nn::MixtureOfExperts moe(8, 8, 6);
  EXPECT_THAT(message([&] { moe(Tensor::ones({4, 7})); }),
              HasSubstr("f64[4, 7] is no [.., sequence, 8] of floats"));
  devices(4);
  const Mesh mesh({{"expert", 4}});
  EXPECT_THAT(message([&] { nn::expert_parallel(moe, mesh, "expert"); }),
              HasSubstr("dim 0 of the weight f64[6, 8, 8] does not divide among the 4 devices of "
                        "\"expert\""));
  EXPECT_THAT(message([&] { nn::expert_parallel(moe, mesh, "expert", "expert"); }),
              HasSubstr("\"expert\" cannot divide both"));
  EXPECT_THAT(message([&] { nn::expert_parallel(nn::Linear(4, 4), mesh, "expert"); }),
              HasSubstr("the model has no MixtureOfExperts"));
}

}  // namespace
}  // namespace tinyshard::mixture_of_experts_test
