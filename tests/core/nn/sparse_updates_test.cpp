// Optimizers with `sparse`: rows that were looked up follow the textbook, the others stay as they are,
// and plans touch no more than those.
#include <cmath>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/nn/nn.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::sparse_updates_test {
namespace {

using nn::optim::Adagrad;
using nn::optim::Adam;
using nn::optim::AdamW;
using nn::optim::Optimizer;
using nn::optim::RMSprop;
using nn::optim::SGD;

constexpr int64_t kRows = 12, kWidth = 4;
using Numbers = std::vector<double>;

// A table by hand, with two numbers of state for each element.
struct ByHand {
  Numbers w, first, second;
  int step = 0;
};
// Updates one element: value, gradient, its two states, the number of the step from one.
using Rule = std::function<void(double& w, double g, double& a, double& b, int step)>;

struct Method {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(const Tensor&)> make;
  Rule rule;
};

template <class O, class Options>
auto maker(Options options) {
  options.sparse = true;
  return [options](const Tensor& table) -> std::unique_ptr<Optimizer> {
    return std::make_unique<O>(std::vector<Tensor>{table}, options);
  };
}

void adam_step(double& w, double g, double& m, double& v, int step, double decay) {
  m = 0.9 * m + 0.1 * g, v = 0.99 * v + 0.01 * g * g;
  const double up =
      m / (1 - std::pow(0.9, step)) / (std::sqrt(v / (1 - std::pow(0.99, step))) + 1e-8);
  w -= 0.1 * (up + decay * w);
}

std::vector<Method> methods() {
  return {
      {"SGD", maker<SGD>(nn::optim::SgdOptions{.lr = 0.1}),
       [](double& w, double g, double&, double&, int) { w -= 0.1 * g; }},
      {"momentum",
       maker<SGD>(nn::optim::SgdOptions{
           .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}),
       [](double& w, double g, double& m, double&, int) {
         g += 0.01 * w, m = 0.9 * m + g;
         w -= 0.1 * (g + 0.9 * m);
       }},
      {"Adagrad", maker<Adagrad>(nn::optim::AdagradOptions{.lr = 0.1, .initial = 0.5}),
       [](double& w, double g, double& s, double& started, int) {
         if (started == 0) s = 0.5, started = 1;
         s += g * g;
         w -= 0.1 * g / (std::sqrt(s) + 1e-10);
       }},
      {"RMSprop",
       maker<RMSprop>(nn::optim::RmspropOptions{.lr = 0.1, .alpha = 0.9, .momentum = 0.5}),
       [](double& w, double g, double& v, double& m, int) {
         v = 0.9 * v + 0.1 * g * g;
         m = 0.5 * m + g / (std::sqrt(v) + 1e-8);
         w -= 0.1 * m;
       }},
      {"Adam", maker<Adam>(nn::optim::AdamOptions{.lr = 0.1, .b2 = 0.99}),
       [](double& w, double g, double& m, double& v, int step) { adam_step(w, g, m, v, step, 0); }},
      {"AdamW", maker<AdamW>(nn::optim::AdamWOptions{.lr = 0.1, .b2 = 0.99, .weight_decay = 0.2}),
       [](double& w, double g, double& m, double& v, int step) {
         adam_step(w, g, m, v, step, 0.2);
       }},
  };
}

// Rows of four steps: some twice in one, one in a step of its own, one out of range, many never.
const std::vector<std::vector<int32_t>> kLookups{
    {3, 7, 3, 0, 3, 11}, {7, 7, 7, 7, 7, 7}, {1, 3, -1, 10, 99, 3}, {11, 2, 3, 7, 2, 0}};

double factor(size_t entry, int64_t column) { return double(entry + 1) * 0.25 - double(column); }

Tensor factors() {
  std::vector<float> f;
  for (size_t e = 0; e < 6; ++e)
    for (int64_t c = 0; c < kWidth; ++c) f.push_back(float(factor(e, c)));
  return Tensor(f, {6, kWidth});
}

Tensor fresh_table() {
  return Tensor::arange(kRows * kWidth).cast(DType::F32).reshape({kRows, kWidth}) * 0.125;
}

Numbers by_hand(const Rule& rule) {
  ByHand t;
  for (int64_t i = 0; i < kRows * kWidth; ++i) t.w.push_back(double(i) * 0.125);
  t.first = t.second = Numbers(t.w.size());
  for (const auto& index : kLookups) {
    ++t.step;
    std::map<int32_t, Numbers> gradients;
    for (size_t e = 0; e < index.size(); ++e) {
      if (index[e] < 0 || index[e] >= kRows) continue;
      Numbers& g = gradients.try_emplace(index[e], Numbers(kWidth)).first->second;
      for (int64_t c = 0; c < kWidth; ++c) g[size_t(c)] += factor(e, c);
    }
    for (const auto& [row, g] : gradients) {
      for (size_t c = 0; c < size_t(kWidth); ++c) {
        const size_t at = size_t(row) * kWidth + c;
        rule(t.w[at], g[c], t.first[at], t.second[at], t.step);
      }
    }
  }
  return t.w;
}

Numbers values(const Tensor& t) { return t.to_vector<double>(); }

void expect_near(const Tensor& got, const Numbers& want, double limit, const std::string& what) {
  const auto values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(values[i], want[i], limit) << what << " element " << i;
}

// The four steps on a table that lies as `place` puts it.
Tensor trained(const Method& method, bool captured, const std::function<Tensor(Tensor)>& place,
               const std::function<Tensor(Tensor)>& place_batch) {
  Tensor table = place(fresh_table()).clone().realize().is_param_();
  auto optimizer = method.make(table);
  TrainingMode on;
  auto one = [&](Tensor index, Tensor f) {
    optimizer->zero_grad();
    (table.embedding(index) * f).sum().backward();
    optimizer->step();
  };
  Jit step = one;
  for (const auto& index : kLookups) {
    Tensor i = place_batch(Tensor(index)).realize(), f = place_batch(factors()).realize();
    if (captured)
      step(i, f);
    else
      one(i, f);
  }
  return table;
}

TEST(SparseUpdates, FollowTheTextbookInRowsThatWereLookedUp) {
  auto as_is = [](const Tensor& x) { return x; };
  for (const Method& method : methods()) {
    const Numbers want = by_hand(method.rule);
    for (bool captured : {false, true})
      expect_near(trained(method, captured, as_is, as_is), want, 2e-5,
                  fmt::format("{} {}", method.name, captured));
  }
}

TEST(SparseUpdates, AreThoseOfOneDeviceOnAMesh) {
  TINYSHARD_NEED_DEVICES(4);
  const Mesh four = Mesh::of(device_names(4), "d"), two = Mesh::of(device_names(2), "d"),
             grid({{"a", 2}, {"b", 2}}, four.devices());
  struct Place {
    const char* name;
    Mesh mesh;
    std::vector<AxisPlacement> table, batch;
  };
  const std::vector<Place> places{
      {"rows", four, {{"d", Shard(0)}}, {}},
      {"columns", four, {{"d", Shard(1)}}, {}},
      {"data parallel", two, {}, {{"d", Shard(0)}}},
      {"rows, divided batch", two, {{"d", Shard(0)}}, {{"d", Shard(0)}}},
      {"rows and columns", grid, {{"a", Shard(0)}, {"b", Shard(1)}}, {{"b", Shard(0)}}},
      {"rows twice", grid, {{"a", Shard(0)}, {"b", Shard(0)}}, {}},
      {"whole", grid, {}, {{"a", Shard(0)}}},
  };
  for (const Method& method : methods()) {
    const Numbers want = by_hand(method.rule);
    for (const Place& p : places) {
      for (bool captured : {false, true}) {
        const bool usual = &p == &places[0] || &p == &places[3];
        if (!usual && (captured || method.name != std::string_view("Adam"))) continue;
        expect_near(trained(
                        method, captured, [&](const Tensor& x) { return x.shard(p.mesh, p.table); },
                        [&](const Tensor& x) { return x.shard(p.mesh, p.batch); }),
                    want, 2e-5, fmt::format("{}, {}, {}", method.name, p.name, captured));
      }
    }
  }
}

// A step on a table [rows, 3] of the row's number, by the gradient of `loss`.
Tensor stepped(int64_t rows, DType type, const std::function<Tensor(const Tensor&)>& loss,
               bool sparse, bool clipped = false) {
  Tensor table = (Tensor::arange(rows).reshape({rows, 1}).expand({rows, 3}) * 0.5)
                     .cast(type)
                     .clone()
                     .realize()
                     .is_param_();
  Adagrad optimizer({table}, {.lr = 0.5, .sparse = sparse});
  TrainingMode on;
  loss(table).backward();
  if (clipped) nn::clip_grad_norm({table}, 0.25);
  optimizer.step();
  return table;
}

// Adagrad leaves rows without a gradient as they are, so that whole updates are the same.
TEST(SparseUpdates, AreOfLookupsInManyForms) {
  const Tensor one = Tensor(std::vector<int32_t>{4}),
               several = Tensor(std::vector<int32_t>{5, 0, 5}),
               square = Tensor(std::vector<int32_t>{1, 2, 2, 6}, {2, 2});
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> losses{
      {"one row", [&](const Tensor& t) { return t.embedding(one).square().sum(); }},
      {"a square", [&](const Tensor& t) { return t.embedding(square).square().sum(); }},
      {"by brackets", [&](const Tensor& t) { return t[{several}].square().sum(); }},
      {"twice",
       [&](const Tensor& t) {
         return t.embedding(several).square().sum() - (t.embedding(square) * 3).sum();
       }},
      {"one and several",
       [&](const Tensor& t) {
         return t.embedding(several).square().sum() + t.embedding(one).sin().sum();
       }},
      {"gather",
       [&](const Tensor& t) {
         return (t.gather(0, several.unsqueeze(1).expand({3, 3})) * 2).exp().sum();
       }},
      {"converted",
       [&](const Tensor& t) { return (t.cast(DType::F32).embedding(several) / 4).square().sum(); }},
      {"a bag",
       [&](const Tensor& t) {
         nn::EmbeddingBag bag(7, 3);
         bag.weight = t;
         return bag(square).square().sum();
       }},
  };
  for (const auto& [name, loss] : losses) {
    for (DType type : {DType::F32, DType::BF16}) {
      for (bool clipped : {false, true}) {
        if (clipped && type == DType::BF16) continue;
        const auto want = stepped(7, type, loss, false, clipped).to_vector<double>(),
                   got = stepped(7, type, loss, true, clipped).to_vector<double>();
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_NEAR(got[i], want[i], type == DType::BF16 ? 0.02 : 1e-5)
              << name << ' ' << tinyshard::name(type) << ' ' << clipped << ' ' << i;
      }
    }
  }
}

TEST(SparseUpdates, OfTablesThatDoNotDivide) {
  TINYSHARD_NEED_DEVICES(4);
  const Mesh mesh = Mesh::of(device_names(4), "d");
  for (const Method& method : methods()) {
    if (method.name != std::string_view("AdamW")) continue;
    const Numbers want = by_hand(method.rule);
    for (int dim : {0, 1}) {
      // Rows and columns beside those of the table, which nothing names.
      auto place = [&](const Tensor& x) {
        return x.pad({{0, 1}, {0, 1}}).shard(mesh, {{"d", Shard(dim)}});
      };
      auto wider = [&](const Tensor& x) { return x.ndim() == 2 ? x.pad({{0, 0}, {0, 1}}) : x; };
      const Tensor table = trained(method, true, place, wider);
      expect_near(table.shrink({{0, kRows}, {0, kWidth}}), want, 2e-5, method.name);
    }
  }
}

TEST(SparseUpdates, GoOnFromACheckpoint) {
  Tensor a = Tensor::ones({6, 2}).is_param_(), b = a.clone().is_param_();
  Adam first({a}, {.lr = 0.1, .sparse = true}), second({b}, {.lr = 0.1, .sparse = true});
  const Tensor index(std::vector<int32_t>{2, 5, 2});
  TrainingMode on;
  auto step = [&](Tensor& table, Adam& adam) {
    adam.zero_grad();
    table.embedding(index).square().sum().backward();
    adam.step();
  };
  step(a, first);
  step(a, first);
  step(b, second);
  Tensor c = b.clone().is_param_();
  Adam third({c}, {.lr = 0.1, .sparse = true});
  nn::load_state_dict(third, nn::state_dict(second));
  step(c, third);
  EXPECT_EQ(values(c), values(a));
}

TEST(SparseUpdates, RefuseOtherGradients) {
  TrainingMode on;
  Tensor table = Tensor::ones({5, 2}).is_param_();
  Adam adam({table}, {.sparse = true});
  const Tensor index(std::vector<int32_t>{2, 4});
  (table.embedding(index).sum() + table.square().sum()).backward();
  const auto error = test::message_of<UserError>([&] { adam.step(); });
  EXPECT_NE(error.find("sparse changes rows that were looked up"), error.npos) << error;
  EXPECT_NE(error.find("f32[5, 2]"), error.npos) << error;
  EXPECT_EQ(values(table), Numbers(10, 1)) << "nothing was written";
  const auto sharded = test::message_of<UserError>(
      [&] { Adam other({table}, {.shard_axis = "d", .sparse = true}); });
  EXPECT_NE(sharded.find("shard the table itself"), sharded.npos) << sharded;
  Tensor number = Tensor::ones({}).is_param_();
  const auto rows = test::message_of<UserError>([&] { SGD other({number}, {.sparse = true}); });
  EXPECT_NE(rows.find("no rows"), rows.npos) << rows;
}

}  // namespace
}  // namespace tinyshard::sparse_updates_test
