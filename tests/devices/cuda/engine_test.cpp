// The engine on GPUs: the same values as on the CPU, steps that replay one graph whatever storages
// come in, and memory that comes back.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "devices/cuda/cuda_device.h"

namespace tinyshard::engine_test {
namespace {

class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() == 0) GTEST_SKIP() << describe_cuda();
  }
  void TearDown() override { Runtime::shutdown(); }
  static void use(std::vector<std::string> devices) {
    Runtime::shutdown();
    Runtime::configure({.devices = std::move(devices)});
  }
  static Device& gpu() { return Context::get().device(parse_device("CUDA:0")); }
};

struct Mlp {
  nn::Linear first{16, 64}, second{64, 4};
  TS_FIELDS(first, second)
  Tensor loss(const Tensor& x, const Tensor& y) const {
    return (second(first(x).relu()) - y).square().mean();
  }
};

struct Trainer {
  explicit Trainer(const Mesh* mesh = nullptr, const char* shard_axis = "")
      : optimizer(placed(mesh), {.lr = 0.01, .shard_axis = shard_axis}) {}
  std::vector<Tensor> placed(const Mesh* mesh) {
    if (mesh) nn::data_parallel(model, *mesh);
    return nn::parameters(model);
  }

  Mlp model;
  nn::optim::AdamW optimizer;
  Jit<std::function<Tensor(Tensor, Tensor)>> step{[this](Tensor x, Tensor y) {
    TrainingMode on;
    optimizer.zero_grad();
    Tensor loss = model.loss(x, y).backward();
    optimizer.step();
    return loss;
  }};
};

std::vector<float> numbers(int64_t count, int seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(float((i * 7919 + seed * 104729) % 1000) / 500.f - 1.f);
  return values;
}

// Losses of some steps, each on a batch of its own, on `mesh` or the default device.
std::vector<float> train(int steps, const Mesh* mesh = nullptr, const char* shard_axis = "") {
  Tensor::manual_seed(3);
  Trainer trainer(mesh, shard_axis);
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    Tensor x(numbers(32 * 16, i), {32, 16}), y(numbers(32 * 4, i + 1), {32, 4});
    if (mesh) {
      x = x.shard(*mesh, {{"data", Shard(0)}});
      y = y.shard(*mesh, {{"data", Shard(0)}});
    }
    losses.push_back(trainer.step(x, y).item<float>());
  }
  return losses;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], tolerance * std::abs(b[i])) << "step " << i;
}

TEST_F(CudaEngine, TrainsAsTheCpuDoes) {
  use({"CPU:0"});
  std::vector<float> cpu = train(30);
  use({"CUDA:0"});
  expect_near(train(30), cpu, 1e-4);
  EXPECT_LT(cpu.back(), cpu.front());
}

TEST_F(CudaEngine, ReplaysWithNewInputsAndOldOnes) {
  use({"CUDA:0"});
  Tensor w = Tensor(numbers(64 * 64, 5), {64, 64}).realize();
  auto body = [&](const Tensor& x) {
    Tensor h = x.matmul(w).softmax(-1);
    return (h.transpose().matmul(x).exp() + h.sum(0)).sum(1).contiguous() * 2;
  };
  Jit step = [&](Tensor x) { return body(x); };
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i)
    inputs.push_back((Tensor(numbers(64 * 64, i), {64, 64}) * 0.1).realize());
  for (int i : {0, 1, 2, 0, 0, 3, 1, 1}) {
    std::vector<float> got = step(inputs[size_t(i)]).to_vector<float>();
    std::vector<float> want = body(inputs[size_t(i)]).to_vector<float>();
    for (size_t k = 0; k < want.size(); ++k)
      ASSERT_NEAR(got[k], want[k], 1e-4 * std::abs(want[k])) << i << ' ' << k;
  }
}

// Value and gradients of a GPT's MLP block, on the default device.
std::vector<std::vector<double>> mlp_block(DType type, int seed) {
  auto made = [&](const std::vector<int64_t>& shape, int offset) {
    int64_t count = 1;
    for (int64_t d : shape) count *= d;
    // Rounded to bf16 always, so that every type gets the same numbers.
    Tensor x(numbers(count, seed + offset), shape);
    return (x * 0.5).cast(DType::BF16).cast(type).realize();
  };
  Tensor x = made({2, 40, 64}, 1), up = made({256, 64}, 2), up_bias = made({256}, 3),
         down = made({64, 256}, 4), down_bias = made({64}, 5), g = made({2, 40, 64}, 6);
  Tensor y = x + (x.linear(up.T(), up_bias) * 0.25).gelu().linear(down.T(), down_bias);
  Tensor z = x.linear(up.T(), up_bias).gelu().linear(down.T(), down_bias);
  std::vector<Tensor> all = z.gradient({x, up, up_bias, down, down_bias}, g);
  all.push_back(y);
  all.push_back(z);
  Tensor::realize(all);
  std::vector<std::vector<double>> out;
  for (const Tensor& t : all) out.push_back(t.cast(DType::F64).to_vector<double>());
  return out;
}

TEST_F(CudaEngine, AnMlpBlockIsThatOfTheCpuInDoublePrecision) {
  std::pair<DType, double> cases[] = {{DType::F32, 1e-3}, {DType::BF16, 2e-2}};
  for (auto [type, tolerance] : cases) {
    use({"CPU:0"});
    auto want = mlp_block(DType::F64, 1);
    use({"CUDA:0"});
    auto got = mlp_block(type, 1);
    for (size_t t = 0; t < want.size(); ++t) {
      double error = 0, norm = 0;
      for (size_t i = 0; i < want[t].size(); ++i) {
        error += (got[t][i] - want[t][i]) * (got[t][i] - want[t][i]);
        norm += want[t][i] * want[t][i];
      }
      double relative = std::sqrt(error / norm);
      EXPECT_LT(relative, tolerance) << name(type) << " tensor " << t;
      std::printf("%s tensor %zu: relative error %.1e\n", std::string(name(type)).c_str(), t,
                  relative);
    }
  }
}

TEST_F(CudaEngine, ReplaysAnMlpBlockWithOtherInputs) {
  use({"CUDA:0"});
  auto made = [&](const Ints& shape, int64_t count, int seed) {
    return (Tensor(numbers(count, seed), shape) * 0.5).cast(DType::BF16).realize();
  };
  Tensor up = made({256, 64}, 256 * 64, 2), bias = made({256}, 256, 3),
         down = made({64, 256}, 256 * 64, 4);
  auto body = [&](const Tensor& x) {
    Tensor y = x.linear(up.T(), bias).gelu().linear(down.T(), {});
    return y.gradient({x}, y)[0] + y;
  };
  Jit step = [&](Tensor x) { return body(x); };
  std::vector<Tensor> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(made({80, 64}, 80 * 64, 10 + i));
  for (int i : {0, 1, 0, 2, 2, 1}) {
    auto got = step(inputs[size_t(i)]).cast(DType::F32).to_vector<float>();
    auto want = body(inputs[size_t(i)]).cast(DType::F32).to_vector<float>();
    for (size_t k = 0; k < want.size(); ++k)
      ASSERT_NEAR(got[k], want[k], 0.02 * std::abs(want[k]) + 0.05) << i << ' ' << k;
  }
}

TEST_F(CudaEngine, CopiesGoBetweenKindsOfDevices) {
  use({"CUDA:0"});
  Tensor x = Tensor(numbers(6 * 5, 1), {6, 5}).realize();
  Mesh cpus = Mesh::of({"CPU:0", "CPU:1"});
  for (int axis : {0, 1}) {
    Tensor there = (x + 1).shard(cpus, {{"data", Shard(axis)}}) * 2;
    std::vector<float> got = there.to_vector<float>(), want = ((x + 1) * 2).to_vector<float>();
    EXPECT_EQ(got, want);
  }
}

TEST_F(CudaEngine, MemoryIsBackAfterAHundredTrainers) {
  use({"CUDA:0"});
  auto once = [] {
    Trainer trainer;
    for (int i = 0; i < 3; ++i)
      trainer.step(Tensor(numbers(32 * 16, i), {32, 16}), Tensor(numbers(32 * 4, i), {32, 4}))
          .item<float>();
  };
  once();
  MemoryStats before = gpu().memory();
  for (int i = 0; i < 100; ++i) once();
  MemoryStats after = gpu().memory();
  EXPECT_EQ(after.used, before.used);
  EXPECT_EQ(after.held, before.held);
}

// Returns what `values` gives on a fresh runtime with TS_SERIAL.
template <class Values>
std::vector<float> with_serial(const char* serial, const Values& values) {
  setenv("TS_SERIAL", serial, 1);
  reload_options();
  Runtime::shutdown();
  Runtime::configure({.devices = {"CUDA:0"}});
  Tensor::manual_seed(5);
  std::vector<float> all = values();
  unsetenv("TS_SERIAL");
  reload_options();
  return all;
}

// Chains that share nothing but their memory, one after the other, and the libraries' workspaces:
// products long enough that a missing order shows.
TEST_F(CudaEngine, WhatRunsSideBySideGivesWhatAChainGives) {
  auto values = [] {
    Tensor weight = (Tensor::randn({768, 768}) * 0.05).realize();
    Jit step = [&](Tensor x) {
      std::vector<Tensor> ends;
      for (int chain = 0; chain < 6; ++chain) {
        Tensor y = x + double(chain);
        for (int i = 0; i < 5; ++i) y = y.matmul(weight).tanh() + y.sum(0, true) * 1e-3;
        ends.push_back(y.sum(1));
      }
      return stack(ends).contiguous();
    };
    std::vector<float> all;
    for (int i = 0; i < 12; ++i) {
      Tensor x = Tensor::randn({512, 768}).realize();
      std::vector<float> y = step(x).to_vector<float>();
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  };
  std::vector<float> chain = with_serial("1", values), side_by_side = with_serial("0", values);
  ASSERT_EQ(chain.size(), side_by_side.size());
  EXPECT_TRUE(chain == side_by_side);
}

// Kernels may begin before the last one has ended, and read all of what it wrote.
TEST_F(CudaEngine, KernelsThatBeginEarlySeeWhatTheLastOneWrote) {
  for (int64_t n : {48, 1500}) {
    std::vector<int> start(size_t(n * n));
    for (size_t i = 0; i < start.size(); ++i) start[i] = int(i % 1009) - 500;
    auto on = [&](const char* device) {
      use({device});
      Tensor total = Tensor::zeros({n}, DType::I32).contiguous().realize();
      Jit step = [&](Tensor y) {
        for (int i = 0; i < 20; ++i) {
          y = (y.T() + y.sum(0, true)).contiguous();
          total.assign(total * 3 + y.sum(1));
        }
        return y;
      };
      Tensor y = Tensor(start, {n, n}).realize();
      for (int i = 0; i < 5; ++i) y = step(y).clone().realize();
      std::vector<int> all = y.to_vector<int>(), sums = total.to_vector<int>();
      all.insert(all.end(), sums.begin(), sums.end());
      return all;
    };
    EXPECT_TRUE(on("CPU:0") == on("CUDA:0")) << n;
  }
}

// The step overwrites its own input, by a name that the schedule does not connect with it.
TEST_F(CudaEngine, AnInputThatTheStepOverwritesIsReadAsInAChain) {
  auto values = [] {
    Tensor state = Tensor::randn({2048, 2048}).realize(),
           weight = Tensor::randn({2048, 2048}).realize();
    Jit step = [&](Tensor x) {
      Tensor y = x.matmul(weight).sum(1);
      state.assign(state * 0.5);
      return (y * 2).contiguous();
    };
    std::vector<float> all;
    for (int i = 0; i < 6; ++i) {
      std::vector<float> y = step(state).to_vector<float>();
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  };
  EXPECT_TRUE(with_serial("1", values) == with_serial("0", values));
}

TEST_F(CudaEngine, TwoGpusTrainAsOne) {
  if (count_cuda_devices() < 2) GTEST_SKIP() << "one GPU";
  use({"CUDA:0"});
  std::vector<float> one = train(20);
  use({"CUDA:0", "CUDA:1"});
  Mesh mesh({{"data", 2}});
  for (const char* shard_axis : {"", "data"}) {
    counters().reset();
    expect_near(train(20, &mesh, shard_axis), one, 1e-4);
    EXPECT_GT(counters().collectives, 0);
  }
}

// In recordings, which hold nothing that goes through the host.
TEST_F(CudaEngine, MaximaOverTwoGpusKeepNan) {
  if (count_cuda_devices() < 2) GTEST_SKIP() << "one GPU";
  use({"CUDA:0", "CUDA:1"});
  Mesh mesh({{"data", 2}});
  Jit step = [&](Tensor x) {
    Tensor largest = x.max(0), least = (x * 2).contiguous().min(0);
    return (largest + least * 0).contiguous();
  };
  for (int run = 0; run < 4; ++run) {
    std::vector<float> values = numbers(64 * 256, run);
    values[256 * 20 * size_t(run) + size_t(run)] = std::nanf("");
    Tensor x(values, {64, 256});
    std::vector<float> got = step(x.shard(mesh, {{"data", Shard(0)}})).to_vector<float>(),
                       want = x.max(0).to_vector<float>();
    for (size_t i = 0; i < want.size(); ++i) {
      if (int(i) == run)
        EXPECT_TRUE(std::isnan(got[i])) << run;
      else
        ASSERT_EQ(got[i], want[i]) << run << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace tinyshard::engine_test
