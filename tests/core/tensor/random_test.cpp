// Random numbers: what they depend on, and what they look like.
#include "core/tensor/random.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard::random_test {
namespace {

using Floats = std::vector<float>;

TEST(Random, DependsOnSeedAndOrder) {
  Tensor::manual_seed(42);
  Floats a = Tensor::rand({100}).to_vector<float>(), b = Tensor::rand({100}).to_vector<float>();
  Tensor::manual_seed(42);
  Tensor first = Tensor::rand({100}), second = Tensor::rand({100});
  EXPECT_EQ(second.to_vector<float>(), b) << "the order of making counts, not that of computing";
  EXPECT_EQ(first.to_vector<float>(), a);
  EXPECT_NE(a, b);
  Tensor::manual_seed(43);
  EXPECT_NE(Tensor::rand({100}).to_vector<float>(), a);
}

TEST(Random, DependsOnTheElementNotTheShape) {
  Tensor::manual_seed(1);
  Floats flat = Tensor::rand({60}).to_vector<float>();
  Tensor::manual_seed(1);
  EXPECT_EQ(Tensor::rand({3, 4, 5}).to_vector<float>(), flat);
}

TEST(Random, IsTheSameOnAnyNumberOfDevices) {
  TINYSHARD_NEED_DEVICES(2);
  for (int n : {2, 3}) {
    if (n > device_count()) break;
    Mesh mesh = Mesh::of(device_names(n));
    Tensor::manual_seed(5);
    Floats whole = Tensor::randn({7, 3}).to_vector<float>();
    Tensor::manual_seed(5);
    EXPECT_EQ(Tensor::randn({7, 3}).shard(mesh, {{"data", Shard(0)}}).to_vector<float>(), whole);

    TrainingMode on;
    Tensor::manual_seed(5);
    Floats dropped = Tensor::ones({7, 3}).dropout(0.4).to_vector<float>();
    Tensor::manual_seed(5);
    Tensor sharded = Tensor::ones({7, 3}).shard(mesh, {{"data", Shard(0)}});
    EXPECT_EQ(sharded.dropout(0.4).to_vector<float>(), dropped);
  }
}

TEST(Random, HasTheMomentsOfItsDistribution) {
  Tensor::manual_seed(3);
  constexpr int64_t n = 100000;
  for (DType dtype : {DType::F32, DType::F64, DType::F16}) {
    std::vector<double> u = Tensor::rand({n}, dtype).to_vector<double>();
    double mean = 0, square = 0;
    for (double v : u) {
      ASSERT_GE(v, 0);
      ASSERT_LT(v, 1);
      mean += v / n, square += v * v / n;
    }
    EXPECT_NEAR(mean, 0.5, 0.005) << name(dtype);
    EXPECT_NEAR(square - mean * mean, 1.0 / 12, 0.003) << name(dtype);
  }
  for (DType dtype : {DType::F32, DType::F64}) {
    std::vector<double> g = Tensor::randn({n}, dtype).to_vector<double>();
    double mean = 0, square = 0, fourth = 0;
    for (double v : g) mean += v / n, square += v * v / n, fourth += v * v * v * v / n;
    EXPECT_NEAR(mean, 0, 0.01);
    EXPECT_NEAR(square, 1, 0.02);
    EXPECT_NEAR(fourth, 3, 0.15);
  }
  double low = Tensor::uniform({n}, -3, 5).min().item<double>(),
         high = Tensor::uniform({n}, -3, 5).max().item<double>();
  EXPECT_GE(low, -3);
  EXPECT_LT(low, -2.99);
  EXPECT_LE(high, 5);
  EXPECT_GT(high, 4.99);
  EXPECT_NEAR(Tensor::normal({n}, 2, 3).mean().item<double>(), 2, 0.05);
}

TEST(Random, IntegersCoverTheirRangeEvenly) {
  Tensor::manual_seed(9);
  std::vector<int64_t> counts(7);
  for (int64_t v : Tensor::randint({70000}, -3, 4).to_vector<int64_t>())
    ++counts.at(static_cast<size_t>(v + 3));
  for (int64_t c : counts) EXPECT_NEAR(static_cast<double>(c), 10000, 500);
  int64_t far = int64_t{1} << 40;
  for (int64_t v : Tensor::randint({1000}, -far, far, DType::I64).to_vector<int64_t>()) {
    EXPECT_GE(v, -far);
    EXPECT_LT(v, far);
  }
  for (int64_t v : Tensor::randint({100}, 250, 256, DType::U8).to_vector<int64_t>())
    EXPECT_GE(v, 250);
}

TEST(Random, PermutationsAndSamples) {
  Tensor::manual_seed(4);
  std::vector<int64_t> p = Tensor::randperm(100).to_vector<int64_t>(), sorted = p;
  std::ranges::sort(sorted);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(sorted[i], i);
  EXPECT_NE(p, sorted);

  Tensor weights{{0.0, 1.0, 3.0, 0.0}, {1.0, 0.0, 0.0, 1.0}};
  std::vector<int64_t> drawn = weights.multinomial(4000, true).to_vector<int64_t>();
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.begin() + 4000, 2)), 3000, 150);
  EXPECT_EQ(std::count(drawn.begin(), drawn.begin() + 4000, 0), 0);
  EXPECT_EQ(std::count(drawn.begin() + 4000, drawn.end(), 1), 0);
  std::vector<int64_t> distinct = (Tensor{1.0, 2.0, 3.0, 4.0}).multinomial(4).to_vector<int64_t>();
  EXPECT_EQ(std::set(distinct.begin(), distinct.end()).size(), 4u);
}

TEST(Random, BoundsOfInitialValues) {
  Tensor::manual_seed(8);
  EXPECT_LE(Tensor::scaled_uniform({10, 10}).abs().max().item<double>(), 0.1);
  EXPECT_LE(Tensor::glorot_uniform({10, 20}).abs().max().item<double>(), std::sqrt(6.0 / 30));
  EXPECT_LE(Tensor::kaiming_uniform({10, 24}, 0).abs().max().item<double>(), 0.5);
  EXPECT_NEAR(Tensor::kaiming_normal({1000, 50}, 0).std().item<double>(), 0.2, 0.005);
}

TEST(Random, DropsInTrainingOnly) {
  Tensor x = Tensor::ones({10000});
  EXPECT_EQ(x.dropout(0.3).sum().item<float>(), 10000);
  TrainingMode on;
  Floats y = x.dropout(0.25).to_vector<float>();
  size_t dropped = 0;
  for (float v : y) {
    if (v == 0) {
      ++dropped;
    } else {
      ASSERT_FLOAT_EQ(v, 1 / 0.75f);
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped), 2500, 150);
  EXPECT_EQ(x.dropout(1).sum().item<float>(), 0);
  {
    TrainingMode off(false);
    EXPECT_FALSE(is_training());
  }
  EXPECT_TRUE(is_training());
}

TEST(Random, GradientOfDropoutDropsTheSame) {
  TrainingMode on;
  Tensor x = Tensor::ones({1000});
  Tensor y = x.dropout(0.5);
  Tensor g = y.sum().gradient({x})[0];
  Tensor::realize({y, g});
  EXPECT_EQ(y.to_vector<float>(), g.to_vector<float>());
}

TEST(Random, ReplaysDrawAnew) {
  Tensor::manual_seed(11);
  Jit step = [](const Tensor& x) {
    TrainingMode on;
    return x.dropout(0.5) + x.dropout(0.5);
  };
  Tensor ones = Tensor::ones({64}).clone().realize();
  std::set<Floats> seen;
  for (int i = 0; i < 6; ++i) seen.insert(step(ones).to_vector<float>());
  EXPECT_EQ(seen.size(), 6u);

  // The same as step by step without a capture.
  Tensor::manual_seed(11);
  TrainingMode on;
  for (int i = 0; i < 6; ++i) {
    Tensor eager = ones.dropout(0.5) + ones.dropout(0.5);
    EXPECT_TRUE(seen.contains(eager.to_vector<float>())) << i;
  }
}

TEST(Random, GoesOnFromASavedState) {
  Jit step = [](const Tensor& x) {
    TrainingMode on;
    return x.dropout(0.5);
  };
  Tensor ones = Tensor::ones({64}).clone().realize();
  Tensor::manual_seed(12);
  for (int i = 0; i < 3; ++i) step(ones);
  Tensor::rand({10}).realize();
  RandomState state = random_state();
  Floats next = step(ones).to_vector<float>(), drawn = Tensor::rand({10}).to_vector<float>();
  Tensor::manual_seed(99);
  step(ones);
  set_random_state(state);
  EXPECT_EQ(step(ones).to_vector<float>(), next);
  EXPECT_EQ(Tensor::rand({10}).to_vector<float>(), drawn);
}

}  // namespace
}  // namespace tinyshard::random_test
