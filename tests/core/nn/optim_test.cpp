// Optimizers around the update itself (whose numbers golden_test checks): captured steps,
// placement, mistakes.
#include "core/nn/optim.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/executable.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "tests/devices.h"

namespace tinyshard::optim_test {
namespace {

using nn::optim::Adam;
using nn::optim::AdamW;
using nn::optim::LAMB;
using nn::optim::LARS;
using nn::optim::SGD;

std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }

std::string message(const auto& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}
#define EXPECT_MENTIONS(call, text) \
  EXPECT_NE(message([&] { call; }).find(text), std::string::npos) << message([&] { call; })

// y = w * x + b by gradient descent.
struct Line {
  Tensor w = Tensor::zeros(1).is_param_(), b = Tensor::zeros(1).is_param_();
  TS_FIELDS(w, b)
  Tensor loss(const Tensor& x) const { return (x * w + b - (x * 3 + 1)).square().mean(); }
};

TEST(Optimizer, LearnsALine) {
  Line line;
  SGD optim(nn::parameters(line), {.lr = 0.1, .momentum = 0.9});
  Tensor x = Tensor::linspace(-1, 1, 32);
  TrainingMode on;
  for (int i = 0; i < 100; ++i) {
    optim.zero_grad();
    line.loss(x).backward();
    optim.step();
  }
  EXPECT_NEAR(line.w.item<float>(), 3, 0.02);
  EXPECT_NEAR(line.b.item<float>(), 1, 0.02);
}

// Two layers of linear regression: libraries may do the step of the first weight along with its
// gradient, that of the second has to wait for who reads it still.
TEST(Optimizer, StepsOfWideLayersAreThoseOfGradientDescent) {
  constexpr size_t kRows = 64, kIn = 40, kInside = 32, kOut = 24, kSteps = 4;
  constexpr double kRate = 1e-3;
  auto waves = [](size_t n, double frequency) {
    std::vector<double> v(n);
    for (size_t i = 0; i < n; ++i) v[i] = 0.3 * std::sin(frequency * double(i) + 1);
    return v;
  };
  std::vector<double> x = waves(kRows * kIn, 0.7), w = waves(kIn * kInside, 1.3),
                      v = waves(kInside * kOut, 2.1);
  auto tensor = [](const std::vector<double>& values, const Ints& shape) {
    return Tensor(values).cast(DType::F32).reshape(shape).clone().realize();
  };
  Tensor input = tensor(x, {kRows, kIn});
  std::vector<Tensor> weights{tensor(w, {kIn, kInside}).is_param_(),
                              tensor(v, {kInside, kOut}).is_param_()};
  SGD optim(weights, {.lr = kRate});
  Jit step = [&](Tensor batch) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = (batch.matmul(weights[0]).matmul(weights[1]) - 1).square().sum().backward();
    optim.step();
    return loss;
  };
  auto product = [](const std::vector<double>& a, const std::vector<double>& b, size_t m, size_t k,
                    size_t n, bool a_turned, bool b_turned) {
    std::vector<double> c(m * n);
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) {
        for (size_t l = 0; l < k; ++l)
          c[i * n + j] += a[a_turned ? l * m + i : i * k + l] * b[b_turned ? j * k + l : l * n + j];
      }
    }
    return c;
  };
  for (size_t i = 0; i < kSteps; ++i) {
    step(input);
    std::vector<double> h = product(x, w, kRows, kIn, kInside, false, false);
    std::vector<double> g = product(h, v, kRows, kInside, kOut, false, false);
    for (double& e : g) e = 2 * (e - 1);
    std::vector<double> dv = product(h, g, kInside, kRows, kOut, true, false);
    std::vector<double> dh = product(g, v, kRows, kOut, kInside, false, true);
    std::vector<double> dw = product(x, dh, kIn, kRows, kInside, true, false);
    for (size_t e = 0; e < w.size(); ++e) w[e] -= kRate * dw[e];
    for (size_t e = 0; e < v.size(); ++e) v[e] -= kRate * dv[e];
  }
  std::vector<double> got_w = values(weights[0]), got_v = values(weights[1]);
  for (size_t e = 0; e < w.size(); ++e) ASSERT_NEAR(got_w[e], w[e], 1e-4) << e;
  for (size_t e = 0; e < v.size(); ++e) ASSERT_NEAR(got_v[e], v[e], 1e-4) << e;
}

TEST(Optimizer, TakesTheSameStepsWhenCaptured) {
  Tensor x = Tensor::linspace(-1, 1, 32).realize();
  auto train = [&](bool captured) {
    Line line;
    AdamW optim(nn::parameters(line), {.lr = 0.1});
    auto body = [&](const Tensor& batch) {
      TrainingMode on;
      optim.zero_grad();
      Tensor loss = line.loss(batch).backward();
      optim.step();
      return loss;
    };
    Jit step = [&](Tensor batch) { return body(batch); };
    for (int i = 0; i < 5; ++i) captured ? step(x) : body(x).realize();
    std::vector<double> all = values(line.w);
    for (const Tensor& t : nn::parameters(optim)) {
      for (double v : values(t)) all.push_back(v);
    }
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Optimizer, ALearningRateChangesStepsThatAreCaptured) {
  Line line;
  SGD optim(nn::parameters(line), {.lr = 0});
  Tensor x = Tensor::linspace(-1, 1, 32).realize();
  Jit step = [&](Tensor batch) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = line.loss(batch).backward();
    optim.step();
    return loss;
  };
  step(x);
  step(x);
  EXPECT_EQ(line.w.item<float>(), 0);
  optim.set_lr(0.1);
  step(x);
  EXPECT_NE(line.w.item<float>(), 0);
}

TEST(Optimizer, KeepsOtherTensorsUpToDate) {
  nn::BatchNorm norm(2);
  SGD optim(nn::parameters(norm), {.lr = 0.1});
  EXPECT_EQ(optim.params().size(), 2u);
  Tensor x = (Tensor::arange(8).cast(DType::F32) + 1).reshape({4, 2}).realize();
  Jit step = [&](Tensor batch) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = norm(batch).square().mean().backward();
    optim.step();
    return loss;
  };
  for (int i = 0; i < 3; ++i) step(x);
  // mean of channel 0 is 4: 0.4, then 0.9 * 0.4 + 0.4...
  EXPECT_NEAR(norm.running_mean.to_vector<float>()[0], 4 * (1 - std::pow(0.9, 3)), 1e-5);
  EXPECT_EQ(norm.num_batches_tracked.item<int>(), 3);

  TrainingMode on;
  optim.zero_grad();
  norm(x).square().mean().backward();
  optim.step();
  EXPECT_EQ(norm.running_mean.state()->value.op(), Op::Buffer)
      << "statistics pile up unless a step computes them";
}

TEST(Optimizer, NarrowParametersHaveWideState) {
  Tensor p = Tensor::ones(4, DType::BF16).is_param_();
  AdamW optim({p});
  EXPECT_EQ(optim.m[0].dtype(), DType::F32);
  p.set_grad(Tensor::ones(4, DType::BF16));
  TrainingMode on;
  optim.step();
  EXPECT_EQ(p.dtype(), DType::BF16);
  Tensor wide = Tensor::ones(4, DType::F64).is_param_();
  EXPECT_EQ(AdamW({wide}).v[0].dtype(), DType::F64);
}

TEST(Optimizer, MistakesAreNamed) {
  Line line;
  SGD optim(nn::parameters(line));
  EXPECT_MENTIONS(optim.step(), "TrainingMode");
  TrainingMode on;
  EXPECT_MENTIONS(optim.step(), "SGD: parameter 0, f32[1], has no gradient");
  EXPECT_MENTIONS(SGD({}), "none of the 0 tensors");
  EXPECT_MENTIONS(SGD({Tensor::ones(3)}), "is_param_()");
  EXPECT_MENTIONS(SGD({line.w}, {.lr = -1}), "-1");
  EXPECT_MENTIONS(nn::clip_grad_norm({line.w}, 1), "backward()");
}

TEST(Optimizer, AStepThatFailsWritesNothing) {
  const Tensor a = Tensor::ones(4).is_param_(), b = Tensor::ones(4).is_param_();
  SGD optim({a, b}, {.lr = 1, .momentum = 0.5});
  a.set_grad(Tensor::ones(4));
  const TrainingMode on;
  EXPECT_MENTIONS(optim.step(), "SGD: parameter 1, f32[4], has no gradient");
  EXPECT_EQ(a.to_vector<float>(), std::vector<float>(4, 1));
  EXPECT_EQ(optim.momentum[0].to_vector<float>(), std::vector<float>(4, 0));
}

// Such numbers would turn gradients around or make parameters NaN.
TEST(Optimizer, NumbersThatNoStepCanTakeAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor w = Tensor::ones(2).is_param_();
  EXPECT_MENTIONS(SGD({w}, {.lr = nan}), "SGD: lr is nan; it must not be negative");
  EXPECT_MENTIONS(SGD({w}, {.momentum = -1}), "SGD: momentum is -1; it must not be negative");
  EXPECT_MENTIONS(LARS({w}, {.weight_decay = nan}), "LARS: weight_decay is nan");
  EXPECT_MENTIONS(Adam({w}, {.b1 = 1}), "Adam: b1 is 1; it must be at least 0 and below 1");
  EXPECT_MENTIONS(AdamW({w}, {.b2 = -0.5}), "AdamW: b2 is -0.5; it must be at least 0 and below 1");
  EXPECT_MENTIONS(LAMB({w}, {.eps = -1e-6}), "LAMB: eps is -1e-06; it must not be negative");
  const SGD optim({w}, {.lr = 0.5});
  EXPECT_MENTIONS(optim.set_lr(-1), "SGD: lr is -1; it must not be negative");
  EXPECT_EQ(optim.lr.item<float>(), 0.5f);
  w.set_grad(Tensor{3.0, 4.0});
  EXPECT_MENTIONS(nn::clip_grad_norm({w}, -1), "clip_grad_norm: max_norm is -1");
  EXPECT_MENTIONS(nn::clip_grad_norm({w}, nan), "clip_grad_norm: max_norm is nan");
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{3, 4}));
}

TEST(Optimizer, ItsRateIsNotSetInACapturedStep) {
  const SGD optim({Tensor::ones(2).is_param_()}, {.lr = 0.5});
  Jit step = [&](const Tensor& x) {
    optim.set_lr(0.25);
    return x * 2;
  };
  EXPECT_MENTIONS(step(Tensor::ones(1)), "SGD: set_lr() in a captured step");
  EXPECT_EQ(optim.lr.item<float>(), 0.5f);
}

// Each device's term is rounded, and not their sum; on one device nothing travels.
TEST(Optimizer, GradientsMayTravelInANarrowType) {
  TINYSHARD_NEED_DEVICES(2);
  const double small = std::ldexp(1, -10);  // lost beside 1 in bf16
  auto gradient = [&](int devices, std::optional<DType> type) {
    Tensor w = Tensor::zeros(1).is_param_(), x = Tensor({1 + small, 1 + 3 * small}).reshape({2, 1});
    if (devices > 1) {
      Mesh mesh = Mesh::of(device_names(devices));
      w = w.shard(mesh).clone().is_param_();
      x = x.shard(mesh, {{mesh.axes()[0].name, Shard(0)}});
    }
    SGD optim({w});
    TrainingMode on;
    (w * x.cast(DType::F32)).sum().backward();
    optim.place_grad(type);
    EXPECT_EQ(w.grad().dtype(), DType::F32);
    nn::clip_grad_norm({w}, 100);  // takes them as they lie
    return w.grad().item<double>();
  };
  EXPECT_EQ(gradient(2, {}), 2 + 4 * small);
  EXPECT_EQ(gradient(2, DType::F64), 2 + 4 * small) << "no wider type than their own";
  EXPECT_EQ(gradient(2, DType::BF16), 2);
  EXPECT_EQ(gradient(1, DType::BF16), 2 + 4 * small);
  Line line;
  SGD optim(nn::parameters(line));
  EXPECT_MENTIONS(optim.place_grad(DType::I32), "SGD: gradients cannot travel as i32");
}

TEST(Optimizer, GroupsStepTogether) {
  Line line;
  SGD a({line.w}, {.lr = 0.1});
  AdamW b({line.b}, {.lr = 0.1});
  nn::optim::OptimizerGroup group(a, b);
  EXPECT_EQ(group.params().size(), 2u);
  TrainingMode on;
  group.zero_grad();
  line.loss(Tensor::linspace(-1, 1, 8)).backward();
  group.step();
  EXPECT_NE(line.w.item<float>(), 0);
  EXPECT_NE(line.b.item<float>(), 0);
}

TEST(Optimizer, UpdatesEachParameterInItsOwnType) {
  for (const bool narrow_first : {false, true}) {
    const Tensor wide = Tensor::full({1}, 1.0, DType::F64).is_param_(),
                 narrow = Tensor::full({1}, 1.0, DType::F32).is_param_();
    nn::optim::SGD optim(narrow_first ? std::vector{narrow, wide} : std::vector{wide, narrow},
                         {.lr = 0.1});
    const TrainingMode on;
    (wide.sum() + narrow.sum().cast(DType::F64)).backward();
    optim.step();
    EXPECT_DOUBLE_EQ(wide.item<double>(), 0.9);
    EXPECT_FLOAT_EQ(narrow.item<float>(), 0.9F);
    EXPECT_EQ(narrow.dtype(), DType::F32);
  }
}

TEST(ClipGradNorm, ScalesAllGradientsByOneFactor) {
  Tensor a = Tensor::zeros(2).is_param_(), b = Tensor::zeros(1).is_param_();
  a.set_grad(Tensor{3.0, 0.0});
  b.set_grad(Tensor{4.0});
  EXPECT_NEAR(nn::clip_grad_norm({a, b}, 1).item<float>(), 5, 1e-6);
  EXPECT_NEAR(a.grad().to_vector<float>()[0], 0.6, 1e-5);
  EXPECT_NEAR(b.grad().item<float>(), 0.8, 1e-5);
  nn::clip_grad_norm({a, b}, 100);
  EXPECT_NEAR(b.grad().item<float>(), 0.8, 1e-5);
}

TEST(CosineLr, RisesThenFalls) {
  nn::CosineOptions o{.peak = 1, .floor = 0.1, .warmup = 4, .steps = 14};
  EXPECT_DOUBLE_EQ(nn::cosine_lr(0, o), 0.25);
  EXPECT_DOUBLE_EQ(nn::cosine_lr(3, o), 1);
  EXPECT_DOUBLE_EQ(nn::cosine_lr(4, o), 1);
  EXPECT_NEAR(nn::cosine_lr(9, o), 0.55, 1e-12);
  EXPECT_NEAR(nn::cosine_lr(14, o), 0.1, 1e-12);
  EXPECT_NEAR(nn::cosine_lr(99, o), 0.1, 1e-12);
}

// --- on several devices --------------------------------------------------------------------------

struct Net {
  nn::Linear first{6, 10}, second{10, 1};
  TS_FIELDS(first, second)
  Tensor loss(const Tensor& x) const { return second(first(x).tanh()).square().mean(); }
};

// Parameters after a few captured steps.
std::vector<double> trained(const Mesh& mesh, const std::string& shard_axis) {
  Tensor::manual_seed(4);
  Net net;
  nn::data_parallel(net, mesh, "data");
  AdamW optim(nn::parameters(net), {.lr = 0.01, .shard_axis = shard_axis});
  Tensor x = Tensor::randn({8, 6}).realize();
  Jit step = [&](Tensor batch) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = net.loss(batch.shard(mesh, {{"data", Shard(0)}})).backward();
    optim.step();
    return loss;
  };
  for (int i = 0; i < 4; ++i) step(x);
  std::vector<double> all;
  for (const Tensor& p : nn::parameters(net)) {
    EXPECT_TRUE(p.sharding().is_replicated());
    for (double v : values(p)) all.push_back(v);
  }
  if (!shard_axis.empty()) {
    EXPECT_EQ(optim.m[0].sharding().placements[0], Shard(0));
    EXPECT_EQ(optim.m[3].sharding().placements[0], Replicate) << "one element does not divide";
  }
  return all;
}

TEST(DataParallel, GivesTheSameParametersAsOneDevice) {
  TINYSHARD_NEED_DEVICES(2);
  set_default_float(DType::F64);
  std::vector<double> one = trained(Mesh::of(device_names(1)), "");
  for (const std::string shard_axis : {"", "data"}) {
    for (int devices : {2, 4}) {
      if (devices > device_count()) break;
      Mesh mesh = Mesh::of(device_names(devices));
      std::vector<double> several = trained(mesh, shard_axis);
      ASSERT_EQ(one.size(), several.size());
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_NEAR(one[i], several[i], 1e-12) << mesh.to_string() << shard_axis;
    }
  }
  set_default_float(DType::F32);
}

struct Biases {
  Tensor a = Tensor::zeros(2).is_param_(), b = Tensor::zeros(2).is_param_();
  TS_FIELDS(a, b)
};

// Also: equal first values are one node in a graph, but each parameter is written over on its own.
TEST(DataParallel, AStepMakesItsParametersInOneRun) {
  Biases net;
  Mesh mesh = Mesh::of(device_names(1));
  nn::data_parallel(net, mesh, "data");
  SGD optim(nn::parameters(net), {.lr = 1});
  Jit step = [&](Tensor x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = (net.a * x + net.b * 2).sum().backward();
    optim.step();
    return loss;
  };
  Tensor x = Tensor({3.f, 5.f}).shard(mesh).realize();
  counters().reset();
  step(x);
  EXPECT_EQ(counters().runs, 2) << "the parameters and the step";
  EXPECT_EQ(net.a.to_vector<float>(), (std::vector<float>{-3, -5}));
  EXPECT_EQ(net.b.to_vector<float>(), (std::vector<float>{-2, -2}));
}

TEST(DataParallel, NamesTheAxesThereAre) {
  TINYSHARD_NEED_DEVICES(2);
  Net net;
  EXPECT_MENTIONS(nn::data_parallel(net, Mesh::of(device_names(2)), "rows"),
                  "data_parallel: mesh has no axis \"rows\"; it has \"data\"  (optim_test.cpp:");
  nn::data_parallel(net, Mesh::of(device_names(2)), "data");
  EXPECT_MENTIONS(AdamW(nn::parameters(net), {.shard_axis = "rows"}),
                  "no axis \"rows\"; it has \"data\"");
}

TEST(DataParallel, ComesBeforeTheOptimizer) {
  TINYSHARD_NEED_DEVICES(2);
  Net net;
  SGD optim(nn::parameters(net), {.momentum = 0.9});
  nn::data_parallel(net, Mesh::of(device_names(2)), "data");
  TrainingMode on;
  net.loss(Tensor::ones({4, 6})).backward();
  EXPECT_MENTIONS(optim.step(), "make the optimizer after the parameters were placed");
}

// LARS makes a step of one length, however large a gradient is.
TEST(Optimizer, NormsOfTinyAndHugeGradients) {
  for (const double size : {1e-42, 1e-30, 1e-20, 1e-18, 1e-3, 1e15, 1e25}) {
    const Tensor w = Tensor{1.0, -2.0, 3.0, 4.0}.is_param_();
    LARS optim({w}, {.lr = 1, .momentum = 0, .weight_decay = 0, .trust = 0.5});
    TrainingMode on;
    w.set_grad(Tensor({1.0, 1.0, -1.0, 1.0}) * size);
    optim.step();
    // The ratio of 1e-42 is more than f32 holds, and the step is a short one.
    const double step = size < 1e-40 ? 0 : 0.5 * std::sqrt(30.0) / 2;
    const double error = size < 1e-40 ? 1e-3 : 1e-5;
    const std::vector<double> got = values(w);
    EXPECT_NEAR(got[0], 1 - step, error) << size;
    EXPECT_NEAR(got[1], -2 - step, error) << size;
    EXPECT_NEAR(got[2], 3 + step, error) << size;
    EXPECT_NEAR(got[3], 4 - step, error) << size;
  }
  const Tensor w = Tensor{3.0, 4.0}.is_param_();
  LARS optim({w}, {.lr = 1, .momentum = 0, .weight_decay = 0, .trust = 1, .eps = 5});
  TrainingMode on;
  w.set_grad(Tensor{3.0, 4.0});
  optim.step();
  EXPECT_NEAR(values(w)[0], 3 - 3 * 0.5, 1e-6);  // 5 / (5 + 5)
  EXPECT_MENTIONS(LARS({w}, {.eps = -1}), "LARS: eps is -1; it must not be negative");
}

}  // namespace
}  // namespace tinyshard::optim_test
