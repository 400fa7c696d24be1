// Gradients that captured steps find and leave. The reference is the same program without a capture,
// called as often.
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::captured_gradients_test {
namespace {

using Values = std::vector<double>;
Tensor stored(Values values) { return Tensor(values).realize(); }
double first(const Tensor& t) { return t.to_vector<double>()[0]; }
std::string error(const std::function<void()>& call) { return test::message_of<UserError>(call); }

// A function as a step, or as it is.
template <class F>
std::function<Tensor(Tensor)> as_step(const F& function, bool captured) {
  if (!captured) return function;
  auto step = std::make_shared<Jit<F>>(function);
  return [step](const Tensor& x) { return (*step)(x); };
}

TEST(CapturedGradients, AddUpOverCalls) {
  const Tensor p = stored({1, 1}).is_param_();
  Jit step = [&](Tensor x) {
    const TrainingMode on;
    (p * x).sum().backward();
    return p.grad() + 0;
  };
  Values values;
  for (double x : {1, 10, 10, 10}) values.push_back(first(step(stored({x, x}))));
  EXPECT_EQ(values, (Values{1, 11, 21, 31}));
  EXPECT_EQ(first(p.grad()), 31);
  p.set_grad({});
  values.clear();
  for (double x : {2, 3}) values.push_back(first(step(stored({x, x}))));
  EXPECT_EQ(values, (Values{2, 5}));
  p.set_grad(stored({100, 100}));
  EXPECT_EQ(first(step(stored({1, 1}))), 101);
}

TEST(CapturedGradients, OfSeveralParametersAddUpAndAreReturned) {
  auto run = [](bool captured) {
    const Tensor p = stored({1, 2}).is_param_(), q = stored({3, 4}).is_param_(),
                 r = stored({5, 6}).is_param_();
    auto step = as_step(
        [&](const Tensor& x) {
          Tensor loss = (p * x * q + r).sum().backward();
          return stack({loss, p.grad().sum(), q.grad().sum(), r.grad().sum()});
        },
        captured);
    Values values;
    for (double call = 0; call < 6; ++call) {
      if (call == 3) q.set_grad({});  // one of them begins anew
      if (call == 5) (r * 7).sum().backward();
      for (double v : step(stored({call + 1, 2})).to_vector<double>()) values.push_back(v);
      for (const Tensor& t : {p, q, r}) values.push_back(first(t.grad()));
    }
    return values;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(CapturedGradients, AnotherStepMayTakeThem) {
  auto run = [](bool captured) {
    const Tensor w = stored({1, 2}).is_param_(), b = stored({0.5, 0.25}).is_param_();
    nn::optim::AdamW optim({w, b}, {.lr = 0.1});
    auto add = as_step(
        [&](const Tensor& x) {
          const TrainingMode on;
          return (x * w + b).square().sum().backward();
        },
        captured);
    auto update = as_step(
        [&](const Tensor& x) {
          const TrainingMode on;
          optim.step();
          optim.zero_grad();
          return x * 1;
        },
        captured);
    Values values;
    for (int s = 0; s < 9; ++s) {
      values.push_back(add(stored({double(s), 1})).item<double>());
      if (s % 3 != 2) continue;
      update(stored({0}));
      for (const Tensor& t : {w, b})
        for (double v : t.to_vector<double>()) values.push_back(v);
    }
    return values;
  };
  const Values now = run(true), expected = run(false);
  ASSERT_EQ(now.size(), expected.size());
  for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], expected[i], 1e-9) << i;
}

// Forward and backward in one step, what is done with the gradient outside, or in another one.
TEST(CapturedGradients, AreThereBehindTheStep) {
  enum class Use { Read, Clip, Add, Update, UpdateOutside };
  for (Use use : {Use::Read, Use::Clip, Use::Add, Use::Update, Use::UpdateOutside}) {
    auto run = [&](bool captured) {
      const Tensor w = stored({1, 2, 3}).is_param_();
      nn::optim::SGD optim({w}, {.lr = 0.01, .momentum = 0.9});
      auto forward = as_step(
          [&](const Tensor& x) {
            const TrainingMode on;
            optim.zero_grad();
            return (x * w).square().sum().backward();
          },
          captured);
      auto update = as_step(
          [&](const Tensor& x) {
            const TrainingMode on;
            optim.step();
            return x * 1;
          },
          captured && use != Use::UpdateOutside);
      Values values;
      for (double s = 1; s < 6; ++s) {
        values.push_back(forward(stored({s, s + 1, 2})).item<double>());
        if (use == Use::Clip) values.push_back(nn::clip_grad_norm({w}, 1.0).item<double>());
        if (use == Use::Add) (w * 3).sum().backward();
        if (use != Use::Read) update(stored({0}));
        for (double v : w.grad().to_vector<double>()) values.push_back(v);
        for (double v : w.to_vector<double>()) values.push_back(v);
      }
      return values;
    };
    const Values now = run(true), expected = run(false);
    ASSERT_EQ(now.size(), expected.size());
    for (size_t i = 0; i < now.size(); ++i)
      EXPECT_NEAR(now[i], expected[i], 1e-9) << int(use) << " " << i;
  }
}

// The generator's step leaves gradients in the discriminator, which nobody reads.
TEST(CapturedGradients, AlternatingStepsTrainTwoModels) {
  for (bool zero_first : {true, false}) {
    auto run = [&](bool captured) {
      const Tensor g = stored({0.5, -0.5}).is_param_(), d = stored({1, 0.25}).is_param_();
      nn::optim::SGD og({g}, {.lr = 0.05}), od({d}, {.lr = 0.05});
      auto judge = [&](const Tensor& x) { return (x * d).sum().sigmoid(); };
      auto step_d = as_step(
          [&](const Tensor& x) {
            const TrainingMode on;
            if (zero_first) od.zero_grad();
            Tensor loss = judge((x * g).detach()) - judge(x);
            loss.backward();
            od.step();
            if (!zero_first) od.zero_grad();
            return loss;
          },
          captured);
      auto step_g = as_step(
          [&](const Tensor& x) {
            const TrainingMode on;
            if (zero_first) og.zero_grad();
            Tensor loss = -judge(x * g);
            loss.backward();
            og.step();
            if (!zero_first) og.zero_grad();
            return loss;
          },
          captured);
      Values values;
      for (double s = 1; s < 6; ++s) {
        values.push_back(step_d(stored({s, 1})).item<double>());
        values.push_back(step_g(stored({1, s})).item<double>());
        values.push_back(first(g));
        values.push_back(first(d));
      }
      return values;
    };
    const Values now = run(true), expected = run(false);
    ASSERT_EQ(now.size(), expected.size());
    for (size_t i = 0; i < now.size(); ++i)
      EXPECT_NEAR(now[i], expected[i], 1e-9) << zero_first << " " << i;
  }
}

struct Model {
  Tensor weight = stored({1, 2}).is_param_();
  TS_FIELDS(weight)
};

TEST(CapturedGradients, OnesThatAnOptimizerOfTheStepTookAreNamed) {
  const Model model;
  nn::optim::SGD optim(nn::parameters(model), {.lr = 0.1});
  Jit step = [&](Tensor x) {
    const TrainingMode on;
    optim.zero_grad();
    Tensor loss = (x * model.weight).sum().backward();
    optim.step();
    return loss;
  };
  for (int call = 0; call < 2; ++call) {
    step(stored({1, 1}));
    const std::string read = error([&] { model.weight.grad().to_vector<double>(); });
    EXPECT_NE(read.find("the gradient of weight, f64[2], has no value"), std::string::npos) << read;
    EXPECT_NE(read.find("return it from the step"), std::string::npos) << read;
    EXPECT_NE(read.find("captured_gradients_test.cpp:"), std::string::npos) << read;
    const std::string added = error([&] { (model.weight * 2).sum().backward(); });
    EXPECT_NE(added.find("the gradient of weight"), std::string::npos) << added;
  }
  optim.zero_grad();
  (model.weight * 2).sum().backward();
  EXPECT_EQ(first(model.weight.grad()), 2);
  // Without zero_grad() in the step the next call adds to it: it is kept.
  const Tensor w = stored({1, 2}).is_param_();
  nn::optim::SGD other({w}, {.lr = 1});
  Jit adds = [&](Tensor x) {
    const TrainingMode on;
    (x * w).sum().backward();
    other.step();
  };
  Values values;
  for (int call = 0; call < 3; ++call) {
    adds(stored({1, 1}));
    values.push_back(first(w));
  }
  EXPECT_EQ(values, (Values{0, -2, -5}));
}

// A gradient that the program holds is not written over by the steps that add to it.
TEST(CapturedGradients, ThoseOfOthersKeepTheirValues) {
  const Tensor p = stored({1, 1}).is_param_(), q = stored({1, 1}).is_param_();
  const Tensor mine = stored({100, 100}), later = mine * 2;
  p.set_grad(mine);
  q.set_grad(mine);
  Jit step = [&](Tensor x) {
    (p * x + q * x * 2).sum().backward();
    return mine + 1;
  };
  for (double call = 1; call < 4; ++call) {
    EXPECT_EQ(first(step(stored({1, 1}))), 101);
    EXPECT_EQ(first(p.grad()), 100 + call);
    EXPECT_EQ(first(q.grad()), 100 + 2 * call);
    EXPECT_EQ(first(mine), 100);
  }
  EXPECT_EQ(first(later), 200);
  // A value made of a gradient that a step left keeps its value, too.
  const Tensor before = p.grad() * 1;
  step(stored({1, 1}));
  EXPECT_EQ(first(before), 103);
  EXPECT_EQ(first(p.grad()), 104);
}

TEST(CapturedGradients, AddUpOnMeshes) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  const Mesh mesh = Mesh::world({{"data", 2}, {"model", 2}});
  auto run = [&](bool captured, bool sharded) {
    Tensor w = stored({1, 2, 3, 4}), b = stored({1, 1, 1, 1});
    if (sharded) {
      w = w.shard(mesh, {{"model", Shard(0)}}).clone();
      b = b.shard(mesh).clone();
    }
    w.is_param_();
    b.is_param_();
    nn::optim::SGD optim({w, b}, {.lr = 0.01});
    auto add =
        as_step([&](const Tensor& x) { return (x * w + b).square().sum().backward(); }, captured);
    auto update = as_step(
        [&](const Tensor& x) {
          const TrainingMode on;
          optim.step();
          optim.zero_grad();
          return x * 1;
        },
        captured);
    Values values;
    for (int s = 0; s < 6; ++s) {
      Tensor x = Tensor::arange(16).reshape({4, 4}).cast(DType::F64) * (s + 1);
      if (sharded) x = x.shard(mesh, {{"data", Shard(0)}});
      values.push_back(add(x.realize()).item<double>());
      for (const Tensor& t : {w, b})
        for (double v : t.grad().to_vector<double>()) values.push_back(v);
      if (s % 2 == 0) continue;
      update(sharded ? stored({0}).shard(mesh).realize() : stored({0}));
      for (double v : w.to_vector<double>()) values.push_back(v);
    }
    return values;
  };
  const Values expected = run(false, false);
  for (bool captured : {false, true}) {
    const Values now = run(captured, true);
    ASSERT_EQ(now.size(), expected.size());
    for (size_t i = 0; i < now.size(); ++i)
      EXPECT_NEAR(now[i], expected[i], 1e-9 * std::abs(expected[i])) << captured << " " << i;
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::captured_gradients_test
