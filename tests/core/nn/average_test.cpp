// Averages of weights against loops, in steps, divided, and in a model's place.
#include "core/nn/average.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/executable.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::average_test {
namespace {

struct Model {
  Tensor w = Tensor({1.0f, 2.0f}).is_param_();
  Tensor count = Tensor::full({}, int64_t{3}, DType::I32);
  TS_FIELDS(w, count)
};

TEST(Average, FollowsTheWeights) {
  for (const bool warm : {false, true}) {
    for (const bool equal : {false, true}) {
      Model model;
      nn::Average average(model, {.decay = 0.75, .equal = equal, .warm_up = warm});
      EXPECT_EQ(average.averages.size(), 1u);
      double want = 1, weight = 1;
      for (int n = 1; n <= 5; ++n) {
        weight = weight * 2 + 1;
        model.w.assign(model.w * 2 + 1);
        average.update();
        double decay = equal ? 1 - 1 / (n + 1.0) : 0.75;
        if (warm) decay = std::min(0.75, (n + 1.0) / (n + 10.0));
        want = decay * want + (1 - decay) * weight;
        EXPECT_NEAR(average.averages.at("w").to_vector<float>()[0], want, 1e-5 * want) << n;
      }
    }
  }
}

TEST(Average, IsPartOfAStepAndDividedAsTheWeights) {
  TINYSHARD_NEED_DEVICES(2);
  Model model;
  const Mesh mesh = Mesh::of(device_names(2), "d");
  nn::fully_shard(model, mesh, "d");
  nn::optim::SGD optim(nn::parameters(model), {.lr = 0.5});
  nn::Average average(model, {.decay = 0.5});
  EXPECT_EQ(average.averages.at("w").sharding().to_string(), model.w.sharding().to_string());
  Jit step = [&](Tensor x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = (model.w * x).sum().backward();
    optim.step();
    average.update();
    return loss;
  };
  double weight = 1, want = 1;
  for (int i = 0; i < 4; ++i) {
    step(Tensor::ones({2}).shard(mesh));
    weight -= 0.5;
    want = 0.5 * want + 0.5 * weight;
  }
  EXPECT_NEAR(average.averages.at("w").to_vector<float>()[0], want, 1e-6);
  {
    const nn::Average::Use use(average);
    EXPECT_NEAR(model.w.to_vector<float>()[0], want, 1e-6);
  }
  EXPECT_NEAR(model.w.to_vector<float>()[0], weight, 1e-6);
  average.copy_to_model();
  EXPECT_NEAR(model.w.to_vector<float>()[0], want, 1e-6);
}

// The end of a use runs nothing, so that no device can fail there; values come back all the same.
TEST(Average, EndsWithoutARun) {
  Model model;
  nn::Average average(model, {.decay = 0.5});
  model.w.assign(model.w * 10);
  average.update();
  const std::vector<float> own = model.w.to_vector<float>();
  Tensor seen;
  int64_t runs = 0;
  try {
    const nn::Average::Use use(average);
    seen = model.w * 1;  // read later: what the model had here
    runs = counters().runs;
    throw UserError("the evaluation ends early");
  } catch (const UserError&) {
    EXPECT_EQ(counters().runs, runs);
  }
  EXPECT_EQ(model.w.to_vector<float>(), own);
  EXPECT_EQ(seen.to_vector<float>(), average.averages.at("w").to_vector<float>());
  Jit step = [&](const Tensor& x) { return (model.w * x).sum(); };
  EXPECT_EQ(step(Tensor{1.0, 0.0}).item<float>(), own[0]);
  {
    const nn::Average::Use use(average);
  }
  EXPECT_EQ(step(Tensor{1.0, 0.0}).item<float>(), own[0]);
}

TEST(Average, IsSavedAndLoaded) {
  Model model, other;
  nn::Average average(model), loaded(other);
  model.w.assign(model.w * 100);
  average.update();
  nn::load_state_dict(loaded, nn::state_dict(average));
  EXPECT_EQ(loaded.averages.at("w").to_vector<float>(),
            average.averages.at("w").to_vector<float>());
  EXPECT_EQ(loaded.updates.item<float>(), 1.0f);
}

TEST(Average, SaysWhatIsWrong) {
  Model model;
  const auto message = [](const auto& call) { return test::message_of<UserError>(call); };
  EXPECT_NE(message([&] { nn::Average(model, {.decay = 1}); }).find("decay is 1"),
            std::string::npos);
  EXPECT_NE(message([&] { nn::Average(nn::StateDict(), {}); }).find("no weights"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::average_test
