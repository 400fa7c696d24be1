// Rows and elements that go from rank to rank.
#include <cmath>
#include <numeric>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::windows_ranks_test {
namespace {

TEST(WindowsOfRanks, HaveTheValuesOfOneProcess) {
  const Mesh mesh = Mesh::world({{"d", -1}});
  ASSERT_GT(world().ranks, 1);
  const Tensor x = Tensor::arange(66).reshape({11, 6}).cast(DType::F32).realize();
  auto run = [](const Tensor& t) {
    return std::vector<Tensor>{t.roll(2, 0) * 2,
                               t.flip({0}) + t,
                               t.shrink({{3, 10}, {1, 5}}),
                               t.pad({{9, 4}, {0, 0}}),
                               t[5],
                               t.cat({t.sin()}, 0)};
  };
  const Tensor split = x.shard(mesh, {{"d", Shard(0)}}).realize();
  const std::vector<Tensor> want = run(x);
  Jit step(run);
  for (int i = 0; i < 3; ++i) {  // the later ones are replayed
    const std::vector<Tensor> got = step(split);
    for (size_t j = 0; j < want.size(); ++j)
      EXPECT_EQ(got[j].shard(mesh).to_vector<float>(), want[j].to_vector<float>()) << j;
  }
}

// Sorts along parts of ranks: two exchanges among all of them, and one between neighbours.
TEST(SortsOfRanks, HaveTheValuesOfOneProcess) {
  const Mesh mesh = Mesh::world({{"d", -1}});
  const int64_t n = 100'001;
  const Tensor x = (Tensor::arange(n) * 7919 % 10007).cast(DType::F32).realize();
  auto run = [](const Tensor& t) {
    return std::vector<Tensor>{t.sort(0).first, t.argsort(0), t.cast(DType::F64).argsort(0, true)};
  };
  const std::vector<Tensor> want = run(x);
  const Tensor split = x.shard(mesh, {{"d", Shard(0)}}).realize();
  EXPECT_EQ(split.sort(0).first.sharding().placements[0].is_shard(), mesh.size() > 2);
  Jit step(run);
  for (int i = 0; i < 3; ++i) {
    const std::vector<Tensor> got = step(split);
    for (size_t j = 0; j < want.size(); ++j)
      EXPECT_EQ(got[j].shard(mesh).to_vector<double>(), want[j].to_vector<double>()) << j;
  }
  EXPECT_EQ(split.sort(0).first.shard(mesh).to_vector<float>(), want[0].to_vector<float>());
}

// Between meshes, with and without common devices: parts go from rank to rank.
TEST(MeshesOfRanks, HaveTheValuesOfOneProcess) {
  const std::vector<DeviceRef>& all = world().devices;
  const int n = int(all.size());
  const Mesh line = Mesh::world({{"d", -1}});
  const Mesh reversed({{"e", n}}, {all.rbegin(), all.rend()});
  const Mesh last({{"l", 1}}, {all.back()}), first({{"f", 1}}, {all.front()});
  const Mesh half({{"h", n / 2}}, {all.begin() + n / 2, all.end()});
  const Tensor x = Tensor::arange(66).reshape({11, 6}).cast(DType::F32).realize();
  const std::vector<float> want = x.to_vector<float>(), twice = (x * 2).to_vector<float>();
  const Tensor rows = x.shard(line, {{"d", Shard(0)}}).realize();
  Jit there = [&](Tensor t) { return (t * 2).shard(reversed, {{"e", Shard(0)}}); };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(there(rows).shard(reversed).to_vector<float>(), twice);
  EXPECT_EQ(rows.shard(reversed).to_vector<float>(), want);
  const Tensor few = (rows * 2).shard(half, {{"h", Shard(0)}});
  EXPECT_EQ(few.shard(line).to_vector<float>(), twice);
  // From the device of one rank to that of another, which the others take no part in, and to all.
  const Tensor one = rows.shard(first), other = one.shard(last);
  EXPECT_EQ(other.shard(line, {{"d", Shard(1)}}).shard(line).to_vector<float>(), want);
}

// A mesh of each process's devices: every rank has a copy of its own there, and takes it from there.
TEST(MeshesOfRanks, MeetThoseOfEachProcess) {
  const Mesh all = Mesh::world({{"w", -1}}), own = Mesh::of({"CPU:0", "CPU:1"});
  const Mesh first({{"f", 1}}, {world().devices.front()});
  EXPECT_EQ(own.devices()[1].rank, DeviceRef::kHere);
  const Tensor x = Tensor::arange(6).cast(DType::F64) + 1;
  const std::vector<double> twice = (x * 2).to_vector<double>();
  for (const std::vector<AxisPlacement>& on_all :
       {std::vector<AxisPlacement>{}, std::vector<AxisPlacement>{{"w", Shard(0)}}}) {
    for (const std::vector<AxisPlacement>& on_own :
         {std::vector<AxisPlacement>{}, std::vector<AxisPlacement>{{"data", Shard(0)}}}) {
      const Tensor p = x.shard(all, on_all).realize(), q = x.shard(own, on_own).realize();
      EXPECT_EQ((p * 2).shard(own, on_own).to_vector<double>(), twice);
      EXPECT_EQ((q * 2).shard(all, on_all).shard(all).to_vector<double>(), twice);
      EXPECT_EQ((p * 2).sum().shard(own).item<double>(), 42);
      EXPECT_EQ((q * 2).sum().shard(all).item<double>(), 42);
      const Tensor there = p.shard(own, on_own), back = q.shard(all, on_all);
      EXPECT_EQ((there * there).sum().gradient({p})[0].shard(all).to_vector<double>(), twice);
      EXPECT_EQ((back * back).sum().gradient({q})[0].to_vector<double>(), twice);
      Jit step = [&](const Tensor& t) { return (t * 2).shard(own, on_own); };
      for (int i = 0; i < 3; ++i) EXPECT_EQ(step(p).to_vector<double>(), twice);
    }
  }
  // A rank that has no copy of the value gets one, too.
  const Tensor one = x.shard(first).realize();
  EXPECT_EQ((one * 2).shard(own).to_vector<double>(), twice);
  EXPECT_EQ((one * 2).shard(all).shard(own).to_vector<double>(), twice);
}

// The gradient of a value that each process has comes to all of them, from a mesh that a process lacks,
// too.
TEST(MeshesOfRanks, HaveGradientsThatARankLacks) {
  const std::vector<DeviceRef>& devices = world().devices;
  const Mesh all = Mesh::world({{"w", -1}});
  for (size_t n : {size_t{1}, devices.size() - 1, devices.size()}) {
    const Mesh part({{"a", int64_t(n)}}, {devices.begin(), devices.begin() + int64_t(n)});
    for (const Mesh& from : {Mesh::single({}), Mesh::of({"CPU:0", "CPU:1"})}) {
      const Tensor x = (Tensor::arange(6).cast(DType::F64) + 1).shard(from).realize();
      const std::vector<double> twice = (x * 2).to_vector<double>();
      const Tensor z = x.shard(part, {{"a", Shard(0)}}), g = (z * z).sum().gradient({x})[0];
      EXPECT_EQ(g.shard(all).to_vector<double>(), twice) << n << " of " << from.to_string();
      EXPECT_EQ((g * 2).shard(all, {{"w", Shard(0)}}).sum().shard(all).item<double>(), 84);
      if (!from.is_single()) continue;  // a mesh of several wins over one of a single device
      EXPECT_EQ((x - g).shard(all).to_vector<double>(), (x * -1).to_vector<double>());
    }
  }
}

// A temperature that was placed nowhere, beside weights on all ranks: their norm is that of one process.
TEST(MeshesOfRanks, HaveTheNormOfWhatWasPlacedNowhereToo) {
  const Mesh mesh = Mesh::world({{"d", -1}});
  for (bool captured : {false, true}) {
    const Tensor w = Tensor::ones({4}).shard(mesh).clone().is_param_();
    const Tensor scale = Tensor::full({}, 2.0f).clone().is_param_();
    nn::optim::SGD optim({w, scale}, {.lr = 0.1});
    const auto train = [&] {
      TrainingMode on;
      optim.zero_grad();
      const Tensor x = Tensor::ones({4, 4}).shard(mesh, {{"d", Shard(0)}});
      const Tensor loss = ((x * w).sum(1) * scale).mean().backward();
      optim.place_grad();
      const Tensor norm = nn::clip_grad_norm(optim.params(), 1.0);
      optim.step();
      return loss + norm;
    };
    Jit step = train;
    for (int i = 0; i < 2;
         ++i) {  // gradients: of each weight the scale, of it the sum of the weights
      const double slope = scale.item<double>(), sum = w.sum().item<double>();
      const double want = slope * sum + std::hypot(2 * slope, sum);
      EXPECT_NEAR((captured ? step() : train()).item<double>(), want, 1e-4);
    }
    EXPECT_NEAR(scale.item<double>(), 1.85858, 1e-5);
    EXPECT_NEAR(w.to_vector<double>()[3], 0.929289, 1e-6);
  }
}

// A number that was placed nowhere and meets two meshes has the gradient of both.
TEST(MeshesOfRanks, AddGradientsOfTwoMeshes) {
  const Mesh all = Mesh::world({{"role", 2}, {"d", -1}}), part = all.at("role", 1);
  const Tensor x = Tensor::arange(8).cast(DType::F32).realize();
  const Tensor z = x.shard(all, {{"d", Shard(0)}}), y = x.shard(part, {{"d", Shard(0)}});
  const Tensor s = Tensor::full({}, 2.0).is_param_();
  const auto loss = [&] { return (z * s).sum() + (y * s * s).sum().shard(all); };
  EXPECT_EQ(loss().item<float>(), 28 * 2 + 28 * 4);
  EXPECT_EQ(loss().gradient({s})[0].shard(all).item<float>(), 28 + 28 * 4);
  loss().backward();
  EXPECT_EQ(s.grad().shard(all).item<float>(), 28 + 28 * 4);
}

// Computing among some ranks leaves the ranks as agreed about runs as they were.
TEST(MeshesOfRanks, OfSomeAndThenOfAll) {
  const std::vector<DeviceRef>& all = world().devices;
  const Mesh line = Mesh::world({{"d", -1}});
  const Mesh most({{"m", int(all.size()) - 1}}, {all.begin(), all.end() - 1});
  const Tensor x = Tensor::arange(12).cast(DType::F32);
  const Tensor part = x.shard(most, {{"m", Shard(0)}});
  part.sum().realize();
  (part * 2).sum().realize();
  EXPECT_EQ(part.shard(line).sum().item<float>(), 66);
}

}  // namespace
}  // namespace tinyshard::windows_ranks_test
