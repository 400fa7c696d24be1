// Tensors made of the parts that devices hold, and parts taken of tensors: in one process and over
// ranks.
#include <cstdlib>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/runtime.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/message_of.h"

namespace tinyshard::local_parts_test {
namespace {

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

class LocalParts : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    if (!several_ranks()) Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  }
  void TearDown() override { Runtime::shutdown(); }
};

std::vector<float> counted(int64_t from, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), static_cast<float>(from));
  return values;
}

std::string message(const std::function<void()>& f) { return test::message_of<UserError>(f); }

TEST_F(LocalParts, MakeTheWhole) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Mesh mesh({{"data", 4}});
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < 4; ++i) parts.emplace_back(counted(6 * i, 6), Ints{2, 3});
  Tensor x = Tensor::from_local(mesh, {{"data", Shard(0)}}, parts);
  EXPECT_EQ(x.sharding().to_string(), "f32[8@data:4, 3]");
  EXPECT_EQ(x.to_vector<float>(), counted(0, 24));
  EXPECT_EQ(summarize(x * 2).collective_bytes, 0);
  EXPECT_EQ((x * 2).sum().item<float>(), 2 * 276);
  // The parts were copied.
  parts[0].assign(Tensor::zeros({2, 3})).realize();
  EXPECT_EQ(x.to_vector<float>(), counted(0, 24));
  // By columns, one part on another device than the one that is to hold it.
  const std::vector<Tensor> columns = {parts[1].to("CPU:3"), parts[2], parts[3], parts[3] + 1};
  Tensor y = Tensor::from_local(mesh, {{"data", Shard(1)}}, columns);
  EXPECT_EQ(y.shape(), (Dims{2, 12}));
  EXPECT_EQ((y[{Slice(), Slice(9, 12)}].to_vector<float>()), counted(19, 6));
}

TEST_F(LocalParts, AreWhatTheDevicesHold) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Mesh line({{"data", 4}}), square({{"a", 2}, {"b", 2}});
  const Tensor whole(counted(0, 35), {5, 7});
  const std::vector<std::pair<Mesh, std::vector<AxisPlacement>>> places = {
      {line, {{"data", Shard(0)}}},
      {line, {{"data", Shard(1)}}},
      {line, {}},
      {square, {{"a", Shard(0)}, {"b", Shard(1)}}},
      {square, {{"a", Shard(1)}, {"b", Shard(1)}}},
      {square, {{"b", Shard(0)}}}};
  for (const auto& [mesh, placements] : places) {
    Tensor x = whole.shard(mesh, placements);
    const std::vector<Tensor> parts = x.local();
    ASSERT_EQ(parts.size(), 4u);
    Tensor again = Tensor::from_local(mesh, placements, parts, Ints{5, 7});
    EXPECT_EQ(again.sharding().to_string(), x.sharding().to_string());
    EXPECT_EQ(again.to_vector<float>(), whole.to_vector<float>()) << x.sharding();
    // Padding counts nowhere.
    EXPECT_EQ(again.sum(0).to_vector<float>(), whole.sum(0).to_vector<float>()) << x.sharding();
  }
  const std::vector<Tensor> rows = whole.shard(line, {{"data", Shard(0)}}).local();
  EXPECT_EQ(rows[0].to_vector<float>(), counted(0, 14));
  EXPECT_EQ(rows[2].to_vector<float>(), counted(28, 7));
  EXPECT_EQ(rows[3].shape(), (Dims{0, 7}));
  EXPECT_EQ(rows[1].sharding().mesh.to_string(),
            Tensor::ones(1).to("CPU:1").sharding().mesh.to_string());
  // A pending sum is completed.
  Tensor sum = whole.shard(line, {{"data", Shard(0)}}).sum(0);
  for (const Tensor& part : sum.local())
    EXPECT_EQ(part.to_vector<float>(), whole.sum(0).to_vector<float>());
  // A tensor of one device is its own part.
  EXPECT_EQ(whole.local().at(0).to_vector<float>(), counted(0, 35));
}

TEST_F(LocalParts, MistakesNameBothShapes) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Mesh mesh({{"data", 4}});
  const Tensor part = Tensor::ones({2, 3});
  auto expect = [&](const std::vector<Tensor>& parts, const std::vector<std::string>& texts,
                    const std::optional<Ints>& shape = {},
                    const std::vector<AxisPlacement>& placements = {{"data", Shard(0)}}) {
    const std::string text =
        message([&] { (void)Tensor::from_local(mesh, placements, parts, shape); });
    for (const std::string& t : texts) EXPECT_NE(text.find(t), std::string::npos) << text;
  };
  expect({part, part}, {"2 parts for 4 devices"});
  expect({part, part, Tensor::ones({1, 3}), part},
         {"part 2 is f32[1, 3]", "CPU:2", "[2, 3] of the whole [8, 3]"});
  expect({part, part, part, part}, {"part 3 is f32[2, 3]", "[1, 3] of the whole [7, 3]"},
         Ints{7, 3});
  expect({part, part, part, part}, {"f32[2, 3]", "[2]", "[8]"}, Ints{8});
  expect({part, part, part, part}, {"negative", "-8"}, Ints{-8, 3});
  expect({part, part.cast(DType::I32), part, part}, {"f32[2, 3]", "part 1 is i32[2, 3]"});
  EXPECT_NE(message([&] {
              (void)Tensor::from_local(mesh, {}, {part, part, part, part}, {}, DType::F64);
            }).find("part 0 is f32[2, 3], where f64 is asked for"),
            std::string::npos);
  expect({part, Tensor(), part, part}, {"part 1 is no tensor"});
  expect({part, part, part, part}, {"\"model\"", "\"data\""}, {}, {{"model", Shard(0)}});
  expect({part, part, part + 1, part}, {"parts 0 and 2", "differ"}, {}, {{"data", Replicate}});
  expect({part, part, part.shard(mesh), part}, {"part 2", "mesh(data=4)", "one device"});
  Jit taken = [&](const Tensor& x) { return x.local().at(0); };
  EXPECT_NE(message([&] { taken(part); }).find("captured step"), std::string::npos);
}

TEST_F(LocalParts, BelongToRanks) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  const Mesh mesh = Mesh::world({{"data", -1}});
  const int64_t ranks = world().ranks, rank = world().rank;
  ASSERT_EQ(mesh.size(), ranks);
  Tensor x = Tensor::from_local(mesh, {{"data", Shard(0)}}, {Tensor(counted(6 * rank, 6), {2, 3})});
  EXPECT_EQ(x.shape(), (Dims{2 * ranks, 3}));
  EXPECT_EQ(x.to_vector<float>(), counted(0, 6 * ranks));
  EXPECT_EQ((x + 1).local().at(0).to_vector<float>(), counted(6 * rank + 1, 6));
  // The last rank has one row less.
  const int64_t rows = rank + 1 == ranks ? 1 : 2;
  Tensor y =
      Tensor::from_local(mesh, {{"data", Shard(0)}},
                         {Tensor(counted(6 * rank, 3 * rows), {rows, 3})}, Ints{2 * ranks - 1, 3});
  EXPECT_EQ(y.to_vector<float>(), counted(0, 6 * ranks - 3));
  EXPECT_EQ(y.local().at(0).shape(), (Dims{rows, 3}));
}

// Each device gives what it has computed of a sum, as torch's from_local takes it.
TEST_F(LocalParts, MayBeTermsOfASum) {
  const Mesh mesh = several_ranks() ? Mesh::world({{"data", -1}}) : Mesh({{"data", 4}});
  std::vector<Tensor> terms;
  for (int64_t p = 0; p < mesh.size(); ++p) {
    if (!several_ranks() || p == world().rank) terms.push_back(Tensor(counted(p, 6), {2, 3}));
  }
  const auto n = static_cast<float>(mesh.size());
  std::vector<float> sum = counted(0, 6);
  for (float& value : sum) value = n * value + n * (n - 1) / 2;
  const Tensor x = Tensor::from_local(mesh, {{"data", Partial()}}, terms);
  EXPECT_EQ(x.shape(), (Dims{2, 3}));
  EXPECT_EQ(x.to_vector<float>(), sum);
  EXPECT_EQ((x * 2 - x).to_vector<float>(), sum);
  EXPECT_EQ(x.shard(mesh, {{"data", Shard(1)}}).to_vector<float>(), sum);
  EXPECT_EQ((x * x).sum().item<float>(), (Tensor(sum, {6}) * Tensor(sum, {6})).sum().item<float>());
  Jit step = [](const Tensor& t) { return t.sum(0) + 1; };
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(step(x).to_vector<float>(), (Tensor(sum, {2, 3}).sum(0) + 1).to_vector<float>());
  const Tensor top = Tensor::from_local(mesh, {{"data", Partial(ReduceOp::Max)}}, terms);
  EXPECT_EQ(top.to_vector<float>(), counted(mesh.size() - 1, 6));
}

// Ranks without a device of the mesh give no parts, and get none.
TEST_F(LocalParts, BelongToSomeRanks) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  const Mesh all = Mesh::world({{"data", -1}}), last({{"a", 1}}, {world().devices.back()});
  const bool holds = world().rank + 1 == world().ranks;
  for (const DType dtype : {default_float(), DType::I32}) {
    std::vector<Tensor> parts;
    if (holds) parts = {Tensor(counted(0, 6), {2, 3}).cast(dtype)};
    const Tensor x = Tensor::from_local(last, {}, parts, Ints{2, 3}, dtype);
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(x.shard(all, {{"data", Shard(0)}}).shard(all).cast(DType::F32).to_vector<float>(),
              counted(0, 6));
    const std::vector<Tensor> again = (x + 1).local();
    ASSERT_EQ(again.size(), parts.size());
    if (holds) {
      EXPECT_EQ(again[0].cast(DType::F32).to_vector<float>(), counted(1, 6));
    }
  }
  const Tensor floats = Tensor::from_local(
      last, {}, holds ? std::vector{Tensor::ones({4})} : std::vector<Tensor>(), Ints{4});
  EXPECT_EQ(floats.shard(all).to_vector<float>(), std::vector<float>(4, 1));
  if (!holds) {
    const std::string text = message([&] { (void)Tensor::from_local(last, {}, {}); });
    EXPECT_NE(text.find("the shape of the whole"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tinyshard::local_parts_test
