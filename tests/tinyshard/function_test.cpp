// Functions with a gradient of their own: values, gradients, devices, captured steps, mistakes.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"
#include "tinyshard/uop.h"

namespace tinyshard::function_test {
namespace {

using test::message_of;
using Floats = std::vector<float>;

Floats values(const Tensor& x) { return x.to_vector<float>(); }

// a b, with gradients that are `factor` times those.
struct Product : Function {
  explicit Product(double f = 10) : factor(f) {}
  Tensor forward(const std::vector<Tensor>& x) override {
    kept = x;
    return x[0] * x[1];
  }
  std::vector<Tensor> backward(const Tensor& gradient) override {
    return {gradient * kept[1] * factor, gradient * kept[0] * factor};
  }
  double factor;
  std::vector<Tensor> kept;
};

TEST(Function, HasItsValueAndItsGradient) {
  const Tensor a(Floats{1, 2}), b(Floats{3, 4});
  const Tensor y = Function::apply<Product>({a, b});
  const std::vector<Tensor> g = (y * 2).sum().gradient({a, b});
  EXPECT_EQ(values(y), (Floats{3, 8}));
  EXPECT_EQ(values(g[0]), (Floats{60, 80}));
  EXPECT_EQ(values(g[1]), (Floats{20, 40}));
}

TEST(Function, TakesArguments) {
  const Tensor a(Floats{1, 2}), b(Floats{3, 4});
  const Tensor y = Function::apply<Product>({a, b}, 1.0);
  EXPECT_EQ(values(y.sum().gradient({a})[0]), (Floats{3, 4}));
}

TEST(Function, AddsUpWithOtherWaysToItsInputs) {
  const Tensor a(Floats{1, 2});
  const Tensor y = Function::apply<Product>({a, a}) + a * 100;
  EXPECT_EQ(values(y.sum().gradient({a})[0]), (Floats{120, 140}));
}

struct First : Function {
  explicit First(Tensor o = {}) : other(std::move(o)) {}
  Tensor forward(const std::vector<Tensor>& x) override {
    return other.defined() ? x[0] * other : x[0] + x[1];
  }
  std::vector<Tensor> backward(const Tensor& gradient) override {
    return other.defined() ? std::vector<Tensor>{gradient} : std::vector<Tensor>{gradient, {}};
  }
  Tensor other;
};

TEST(Function, GivesNoGradientWhereItSaysNone) {
  const Tensor a(Floats{1, 2}), b(Floats{3, 4}), c(Floats{5, 6});
  const std::vector<Tensor> g = Function::apply<First>({a, b}).sum().gradient({a, b}, {}, true);
  EXPECT_EQ(values(g[0]), (Floats{1, 1}));
  EXPECT_EQ(values(g[1]), (Floats{0, 0}));
  // A tensor that it reads besides its inputs is none of them.
  const std::vector<Tensor> h = Function::apply<First>({a}, c).sum().gradient({a, c}, {}, true);
  EXPECT_EQ(values(h[0]), (Floats{1, 1}));
  EXPECT_EQ(values(h[1]), (Floats{0, 0}));
  // Where no input leads to a target it is not asked.
  struct Asked : Function {
    Asked(Tensor o, int& n) : other(std::move(o)), times(n) {}
    Tensor forward(const std::vector<Tensor>& x) override { return x[0] * other; }
    std::vector<Tensor> backward(const Tensor& gradient) override {
      ++times;
      return {gradient};
    }
    Tensor other;
    int& times;
  };
  int times = 0;
  const Tensor y = Function::apply<Asked>({a}, c, times).sum();
  EXPECT_EQ(values(y.gradient({c}, {}, true)[0]), (Floats{0, 0}));
  EXPECT_EQ(times, 0);
  (void)y.gradient({a});
  EXPECT_EQ(times, 1);
}

TEST(Function, OfParametersInBackward) {
  const Tensor w = Tensor(Floats{1, 2}).is_param_(), a(Floats{3, 4});
  for (int i = 1; i <= 2; ++i) {
    Function::apply<Product>({w, a}).sum().backward();
    EXPECT_EQ(values(w.grad()), (Floats{30 * float(i), 40 * float(i)}));
  }
}

TEST(Function, GradientOfItsGradient) {
  const Tensor a(Floats{1, 2}), b(Floats{3, 4});
  const Tensor g = Function::apply<Product>({a, b}).sum().gradient({a})[0];  // 10 b
  EXPECT_EQ(values((g * b).sum().gradient({b})[0]), (Floats{60, 80}));
}

TEST(Function, WithinAFunctionAndWithinActivationsComputedAgain) {
  struct Outer : Function {
    Tensor forward(const std::vector<Tensor>& x) override {
      return Function::apply<Product>({x[0], x[0]});
    }
    std::vector<Tensor> backward(const Tensor& gradient) override { return {gradient * 7}; }
  };
  const Tensor a(Floats{1, 2});
  EXPECT_EQ(values(Function::apply<Outer>({a}).sum().gradient({a})[0]), (Floats{7, 7}));
  const Tensor b(Floats{3, 4});
  const Tensor y = nn::checkpoint_activations(
      [&](const Tensor& x) { return Function::apply<Product>({x.exp2(), b}) * 2; }, a);
  const std::vector<Tensor> g = y.sum().gradient({a});
  const float ln2 = std::log(2.0F);
  EXPECT_NEAR(values(g[0])[0], 60 * 2 * ln2, 1e-3);
  EXPECT_NEAR(values(g[0])[1], 80 * 4 * ln2, 1e-3);
}

TEST(Function, InACapturedStep) {
  const Tensor w = Tensor(Floats{1, 2}).is_param_();
  int calls = 0;
  Jit step([&](const Tensor& a) {
    ++calls;
    w.set_grad({});
    const Tensor loss = Function::apply<Product>({w, a}).sum();
    loss.backward();
    w.assign(w - w.grad() * 0.1);
    return loss;
  });
  Floats want{1, 2};
  for (int i = 1; i <= 4; ++i) {
    const Floats a{float(i), float(2 * i)};
    EXPECT_EQ(step(Tensor(a)).item<float>(), want[0] * a[0] + want[1] * a[1]);
    for (size_t k = 0; k < 2; ++k) want[k] = want[k] - (a[k] * 10) * 0.1F;
    EXPECT_EQ(values(w), want);
  }
  EXPECT_LE(calls, 2);
}

TEST(Function, OnShardedValuesBothWays) {
  TINYSHARD_NEED_DEVICES(2);
  const Mesh mesh = Mesh::of(device_names(2), "d");
  const Tensor a = Tensor::arange(6).cast(DType::F32).reshape({6, 1}).expand({6, 2}).contiguous();
  const Tensor b = a + 1;
  for (const Placement& place : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate)}) {
    const Tensor s = a.shard(mesh, {{"d", place}}).realize(),
                 t = b.shard(mesh, {{"d", place}}).realize();
    const Tensor y = Function::apply<Product>({s, t});
    const std::vector<Tensor> g = y.sum().gradient({s, t});
    EXPECT_EQ(y.sharding().to_string(), s.sharding().to_string());
    EXPECT_EQ(g[0].sharding().to_string(), s.sharding().to_string());
    EXPECT_EQ(values(y), values(a * b));
    EXPECT_EQ(values(g[0]), values(b * 10));
    EXPECT_EQ(values(g[1]), values(a * 10));
  }
  // A row on all devices gets what all rows give it.
  const Tensor s = a.shard(mesh, {{"d", Shard(0)}}).realize();
  const Tensor row = Tensor(Floats{1, 2}).shard(mesh, {{"d", Replicate}}).realize();
  struct Scale : Function {
    Tensor forward(const std::vector<Tensor>& x) override {
      kept = x;
      return x[0] * x[1];
    }
    std::vector<Tensor> backward(const Tensor& g) override {
      return {g * kept[1], (g * kept[0]).sum(0) * 3};
    }
    std::vector<Tensor> kept;
  };
  const Tensor y = Function::apply<Scale>({s, row});
  EXPECT_EQ(values(y.sum().gradient({row})[0]), (Floats{45, 45}));
}

TEST(Function, WithinShardMap) {
  TINYSHARD_NEED_DEVICES(2);
  const Mesh mesh = Mesh::of(device_names(2), "d");
  const Tensor x = Tensor::arange(4).cast(DType::F32), w(Floats{2, 3});
  auto f = shard_map(mesh, [&](const Tensor& part) { return Function::apply<Product>({part, w}); },
                     {.in = {{{"d", Shard(0)}}}, .out = {{{"d", Shard(0)}}}});
  const Tensor y = f(x);
  EXPECT_EQ(values(y), (Floats{0, 3, 4, 9}));
  const std::vector<Tensor> g = f(x).sum().gradient({x, w});
  EXPECT_EQ(values(g[0]), (Floats{20, 30, 20, 30}));
  EXPECT_EQ(values(g[1]), (Floats{20, 40}));  // of both devices
}

TEST(Function, LeavesNothingBehind) {
  const Tensor a = Tensor(Floats{1, 2}).is_param_().realize();
  auto once = [&] {
    const Tensor y = Function::apply<Product>({a, a});
    y.sum().backward();
    a.grad().realize();
    a.set_grad({});
  };
  once();
  const size_t before = live_nodes();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_LE(live_nodes(), before);
}

struct Given : Function {
  explicit Given(std::vector<Tensor> g) : gradients(std::move(g)) {}
  Tensor forward(const std::vector<Tensor>& x) override { return x[0] + x[1]; }
  std::vector<Tensor> backward(const Tensor&) override { return gradients; }
  std::vector<Tensor> gradients;
};

TEST(FunctionMistakes, NameTheFunctionAndTheInput) {
  const Tensor a(Floats{1, 2}), b(Floats{3, 4});
  auto error = [&](std::vector<Tensor> gradients) {
    const Tensor y = Function::apply<Given>({a, b}, std::move(gradients)).sum();
    return message_of<UserError>([&] { (void)y.gradient({a}); });
  };
  auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(error({a}), "backward of Given: 1 gradients for 2 inputs");
  expect(error({a, Tensor::ones({3})}),
         "backward of Given: the gradient of input 1 is f32[3], but the input is f32[2]");
  expect(error({a.cast(DType::F64), b}),
         "the gradient of input 0 is f64[2], but the input is f32[2]");
  expect(message_of<UserError>(
             [&] { (void)Function::apply<Given>({a, Tensor()}, std::vector<Tensor>()); }),
         "apply: input 1 of Given was never given a value  (function_test.cpp:");
  struct Throws : Function {
    Tensor forward(const std::vector<Tensor>& x) override { return x[0]; }
    std::vector<Tensor> backward(const Tensor& g) override { return {g.matmul(Tensor::ones({5}))}; }
  };
  const Tensor y = Function::apply<Throws>({a}).sum();
  expect(message_of<UserError>([&] { (void)y.gradient({a}); }), "backward of Throws: ");
}

}  // namespace
}  // namespace tinyshard::function_test
