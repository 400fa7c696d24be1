// Items in any order that their memory allows compute the same: training steps, whose many small
// items reuse memory, overwrite storages and wait for collectives.
#include <cstdlib>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/context.h"

namespace tinyshard::item_order_test {
namespace {

struct Block {
  nn::LayerNorm norm{32};
  nn::Linear up{32, 64}, down{64, 32};
  TS_FIELDS(norm, up, down)
  Tensor operator()(const Tensor& x) const { return x + down(up(norm(x)).gelu()); }
};
struct Model {
  nn::Linear in{16, 32};
  Block first, second;
  nn::Linear out{32, 10};
  TS_FIELDS(in, first, second, out)
  Tensor operator()(const Tensor& x) const { return out(second(first(in(x).relu()))); }
};

void set_shuffle(int shuffle) {
  setenv("TS_SHUFFLE", std::to_string(shuffle).c_str(), 1);
  reload_options();
  Runtime::shutdown();
}

// Losses of some captured steps on this many devices, and the parameters after them.
std::vector<float> train(int devices, const char* shard_axis, int shuffle) {
  set_shuffle(shuffle);
  RuntimeOptions runtime;
  for (int i = 0; i < devices; ++i) runtime.devices.push_back("CPU:" + std::to_string(i));
  Runtime::configure(runtime);
  Tensor::manual_seed(11);
  Mesh mesh({{"data", devices}});
  Model model;
  nn::data_parallel(model, mesh);
  nn::optim::AdamW optimizer(nn::parameters(model), {.lr = 0.01, .shard_axis = shard_axis});
  Jit step = [&](Tensor x, Tensor y) {
    TrainingMode on;
    optimizer.zero_grad();
    Tensor loss = model(x).sparse_categorical_crossentropy(y).backward();
    nn::clip_grad_norm(nn::parameters(model), 1.0);
    optimizer.step();
    return loss;
  };
  std::vector<float> values;
  for (int i = 0; i < 4; ++i) {
    Tensor x = Tensor::randn({24, 16}).shard(mesh, {{"data", Shard(0)}}),
           y = Tensor::randint({24}, 0, 10).shard(mesh, {{"data", Shard(0)}});
    values.push_back(step(x, y).item<float>());
  }
  for (const Tensor& p : nn::parameters(model)) {
    std::vector<float> all = p.to_vector<float>();
    values.insert(values.end(), all.begin(), all.end());
  }
  return values;
}

class ItemOrder : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("TS_SHUFFLE");
    reload_options();
    Runtime::shutdown();
  }
};

TEST_F(ItemOrder, AnyThatMemoryAllowsGivesTheSame) {
  for (int devices : {1, 3}) {
    for (const char* shard_axis : {"", "data"}) {
      std::vector<float> in_order = train(devices, shard_axis, 0);
      for (int shuffle = 1; shuffle <= 4; ++shuffle)
        EXPECT_TRUE(train(devices, shard_axis, shuffle) == in_order)
            << devices << " devices, TS_SHUFFLE=" << shuffle;
    }
  }
}

// The step overwrites its own input, by a name that the schedule does not connect with it:
// then everything runs in order.
TEST_F(ItemOrder, IsKeptWhereAnInputIsOverwritten) {
  auto run = [](int shuffle) {
    set_shuffle(shuffle);
    Tensor::manual_seed(5);
    Tensor state = Tensor::randn({32, 32}).realize(), weight = Tensor::randn({32, 32}).realize();
    Jit step = [&](Tensor x) {
      Tensor y = x.matmul(weight).sum(1), z = x.square().sum(0), w = x.max(1);
      state.assign(state * 0.5);
      return stack({y, z, w});
    };
    step(Tensor::randn({32, 32}).realize());  // captured with an input that nothing else uses
    std::vector<float> all;
    for (int i = 0; i < 6; ++i) {
      std::vector<float> values = step(state).to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  std::vector<float> in_order = run(0);
  for (int shuffle = 1; shuffle <= 8; ++shuffle)
    EXPECT_TRUE(run(shuffle) == in_order) << "TS_SHUFFLE=" << shuffle;
}

}  // namespace
}  // namespace tinyshard::item_order_test
