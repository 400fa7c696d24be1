// Divided values on the host and on one device: right however they lie, and no more memory than they
// need. In one process and over ranks, each case in a process of its own kind.
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::read_parts_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("TS_WORLD_SIZE"); }

int64_t status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib;
    if (word == field && file >> kib) return kib * 1024;
  }
  return 0;
}

// The most memory that a function had beside what was there before.
template <class F>
int64_t peak_of(const F& f) {
  std::ofstream("/proc/self/clear_refs") << "5";  // forgets the peak so far
  const int64_t before = status("VmRSS:");
  f();
  return status("VmHWM:") - before;
}

void configure(int devices) {
  Runtime::shutdown();
  if (several_ranks())
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 2});
  else
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = devices});
}

std::vector<float> counted(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

void expect_read(const Tensor& x, const std::string& what) {
  const std::vector<float> expected = counted(x.numel());
  EXPECT_EQ(x.to_vector<float>(), expected) << what;
  EXPECT_EQ(x.to_vector<int>(), std::vector<int>(expected.begin(), expected.end())) << what;
  EXPECT_EQ(x.cast(DType::F64).to_vector<float>(), expected) << what;
  const std::vector<std::byte> bytes = x.data();
  EXPECT_EQ(bytes.size(), expected.size() * sizeof(float)) << what;
  EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(expected)))) << what;
  EXPECT_EQ(x.copy_to_host().to_vector<float>(), expected) << what;
  EXPECT_EQ(x.to("CPU:0").to_vector<float>(), expected) << what;
  EXPECT_EQ((x.to("CPU:1") + 0).to_vector<float>(), expected) << what;
}

TEST(ReadParts, AreTheWholeHoweverTheyLie) {
  configure(6);
  const Mesh line = Mesh::world({{"data", -1}});
  const int64_t n = line.size();
  std::vector<Mesh> meshes{line};
  if (n % 2 == 0) meshes.push_back(Mesh::world({{"a", -1}, {"b", 2}}));
  for (const Mesh& mesh : meshes) {
    for (const Dims& shape : {Dims{12, 8, 6}, Dims{7, 5, 3}, Dims{1, 9, 2}, Dims{3, 1, 50}}) {
      for (int first = -1; first < 3; ++first) {
        for (int second = -1; second < (mesh.axes().size() > 1 ? 3 : 0); ++second) {
          std::vector<AxisPlacement> place;
          if (first >= 0) place.emplace_back(mesh.axes()[0].name, Shard(first));
          if (second >= 0) place.emplace_back(mesh.axes()[1].name, Shard(second));
          const Tensor x =
              Tensor::arange(product(shape)).cast(DType::F32).reshape(shape).shard(mesh, place);
          expect_read(x.clone().realize(), x.describe());
        }
      }
    }
  }
  // Parts in an order of their own, terms of a sum, and a value that is not computed yet.
  const int64_t k = 4 * n;
  const Tensor joined = Tensor::arange(3 * k * 2).cast(DType::F32).reshape({3 * k, 2});
  expect_read(joined.shard(line, {{"data", Shard(0, {k, k, k})}}).clone().realize(), "joined");
  const Tensor rows = joined.shard(line, {{"data", Shard(0)}});
  EXPECT_EQ(rows.sum(0).to_vector<float>(), joined.sum(0).to_vector<float>());
  expect_read(rows + 0, "lazy");
  EXPECT_EQ(Tensor::zeros({0, 3}).shard(line, {{"data", Shard(1)}}).clone().to_vector<float>(),
            std::vector<float>{});
}

TEST(ReadParts, OfABooleanAndOfHalves) {
  configure(4);
  const Mesh mesh = Mesh::world({{"data", -1}});
  const Tensor x = Tensor::arange(10).cast(DType::F32).shard(mesh, {{"data", Shard(0)}});
  EXPECT_EQ((x < 3).clone().realize().to_vector<bool>(),
            (std::vector<bool>{true, true, true, false, false, false, false, false, false, false}));
  EXPECT_EQ(x.cast(DType::BF16).clone().realize().to_vector<float>(), counted(10));
  EXPECT_EQ((x < 3).to("CPU:0").sum().item<int>(), 3);
}

// A constant has parts on a mesh, too, but no storage that would name it.
TEST(ReadParts, OfAConstant) {
  configure(6);
  const Mesh line = Mesh::world({{"data", -1}});
  std::vector<Mesh> meshes{line};
  if (line.size() % 2 == 0) meshes.push_back(Mesh::world({{"a", -1}, {"b", 2}}));
  for (const Mesh& mesh : meshes) {
    std::vector<AxisPlacement> place;
    for (size_t a = 0; a < mesh.axes().size(); ++a)
      place.emplace_back(mesh.axes()[a].name, Shard(int(a)));
    const Tensor x = Tensor::full({7, 5}, 2.0F).shard(mesh, place);
    const Tensor zero = Tensor::arange(35).reshape({7, 5}).cast(DType::F32).shard(mesh, place) * 0;
    auto is = [](const Tensor& y, float value) {
      const std::vector<float> expected(35, value);
      EXPECT_EQ(y.to_vector<float>(), expected);
      EXPECT_EQ(y.to("CPU:0").to_vector<float>(), expected);
      EXPECT_EQ((y.to("CPU:1") + 1).to_vector<float>(), std::vector<float>(35, value + 1));
      EXPECT_EQ(y.to("CPU:0").shard({"CPU:0", "CPU:1"}, 0).to_vector<float>(), expected);
      EXPECT_EQ(y.shard({"CPU:0", "CPU:1"}, 1).to("CPU:1").to_vector<float>(), expected);
    };
    is(x, 2);
    is(x + 1, 3);
    is((x < 3).where(x, x + 1), 2);
    is(x.contiguous(), 2);
    is((x + 1).contiguous() * 2, 6);
    is(zero + 4, 4);
    is(x.reshape({5, 7}).transpose(0, 1).contiguous().reshape({7, 5}), 2);
    is(x.clone().realize(), 2);
  }
}

// Gradients through a value that was brought to one device go back to its parts.
TEST(ReadParts, AGradientGoesBack) {
  configure(4);
  const Mesh mesh = Mesh::world({{"data", -1}});
  const Tensor w = Tensor::ones({9, 4}).shard(mesh, {{"data", Shard(0)}}).is_param_();
  const Tensor scale = Tensor::arange(36).cast(DType::F32).reshape({9, 4});
  (w.to("CPU:0") * scale).sum().backward();
  EXPECT_EQ(w.grad().to_vector<float>(), counted(36));
  Jit step = [&](Tensor x) { return x.to("CPU:0") * 2; };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = (scale + i).shard(mesh, {{"data", Shard(1)}}).clone().realize();
    EXPECT_EQ(step(x).to_vector<float>(), ((scale + i) * 2).to_vector<float>()) << i;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasures = false;
#else
constexpr bool kMeasures = true;
#endif

TEST(ReadParts, TakesTheMemoryOfTheWholeOnce) {
  if (!kMeasures) GTEST_SKIP();
  configure(16);
  const Mesh mesh = Mesh::world({{"data", -1}});
  const int64_t bytes = 64 * kMiB;
  const Tensor x =
      Tensor::full({16 << 20}, 1.0F).shard(mesh, {{"data", Shard(0)}}).clone().realize();
  x.shrink({{0, 64}}).to_vector<float>();  // what a first read sets up
  EXPECT_LE(peak_of([&] { EXPECT_EQ(x.data().size(), size_t(bytes)); }), bytes * 5 / 4);
  EXPECT_LE(peak_of([&] { EXPECT_EQ(x.to_vector<float>().size(), size_t(bytes / 4)); }),
            bytes * 5 / 4);
  // Two copies are allowed: that of copy_to_host(), and the vector that is made of it.
  EXPECT_LE(peak_of([&] { EXPECT_EQ(x.copy_to_host().to_vector<float>()[7], 1); }), bytes * 9 / 4);
  if (several_ranks()) return;
  EXPECT_LE(peak_of([&] { x.to("CPU:0").realize(); }), bytes * 9 / 4);
}

}  // namespace
}  // namespace tinyshard::read_parts_test
