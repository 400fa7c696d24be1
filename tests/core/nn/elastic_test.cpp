// nn::Elastic in one process; scripts/elastic.py has it among ranks that die.
#include "core/nn/elastic.h"

#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::test::elastic_test {
namespace {

using Floats = std::vector<float>;

Tensor state_of(const Mesh& mesh, const Floats& values) {
  return Tensor(values, {int64_t(values.size())}).shard(mesh).contiguous().realize();
}

bool several_ranks() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

TEST(Elastic, WhatWasCommittedOutlivesTheRuntime) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  nn::Elastic elastic;
  {
    const Mesh mesh = Mesh::of({"CPU:0", "CPU:1", "CPU:2"});
    Tensor w = state_of(mesh, {1, 2, 3, 4, 5});
    EXPECT_EQ(elastic.restore({{"w", w}}), nn::Progress{});
    EXPECT_EQ(w.to_vector<float>(), (Floats{1, 2, 3, 4, 5}));
    elastic.commit({{"w", w}}, {1, 30});
    w.assign(w * 2).realize();
    elastic.commit({{"w", w}}, {2, 60});
    w.assign(w * 2).realize();
  }
  Runtime::shutdown();
  Tensor w = state_of(Mesh::of({"CPU:0", "CPU:1"}), {0, 0, 0, 0, 0});
  EXPECT_EQ(elastic.restore({{"w", w}}), (nn::Progress{2, 60}));
  EXPECT_EQ(w.to_vector<float>(), (Floats{2, 4, 6, 8, 10}));
}

TEST(Elastic, DividedStateIsDividedAnew) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  const Floats values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  const auto divided = [&](const Mesh& mesh, int dim, float scale) {
    Tensor x = Tensor(values, {7, 2}) * scale;
    return x.shard(mesh, {{"data", Shard(dim)}}).contiguous().realize();
  };
  nn::Elastic elastic;
  {
    const Mesh mesh = Mesh::of({"CPU:0", "CPU:1", "CPU:2"});
    elastic.commit({{"rows", divided(mesh, 0, 1)},
                    {"columns", divided(mesh, 1, 2)},
                    {"whole", state_of(mesh, {1, 2, 3})}},
                   {1, 30});
  }
  Runtime::shutdown();
  const Mesh mesh = Mesh::of({"CPU:0", "CPU:1"});
  const Tensor rows = divided(mesh, 0, 0), columns = divided(mesh, 0, 0);
  const Tensor whole =
      Tensor(Floats{0, 0, 0}, {3}).shard(mesh, {{"data", Shard(0)}}).contiguous().realize();
  const nn::StateDict state = {{"rows", rows}, {"columns", columns}, {"whole", whole}};
  EXPECT_EQ(elastic.restore(state), (nn::Progress{1, 30}));
  EXPECT_EQ(rows.to_vector<float>(), values);
  EXPECT_EQ((columns / 2).to_vector<float>(), values);
  EXPECT_EQ(whole.to_vector<float>(), (Floats{1, 2, 3}));
}

// Stages of a pipeline over ranks: tensors that lie on devices of one rank alone, and may lie on those
// of the other when they are given back.
TEST(Elastic, StateOfStagesGoesOn) {
  if (!several_ranks()) GTEST_SKIP() << "several ranks";
  const Mesh all = Mesh::world({{"pipe", 2}});
  nn::Linear a(4, 4), b(4, 3);
  nn::Pipeline pipe(all, "pipe", {a, b}, {.micro_batches = 2});
  const auto values_of = [&](const nn::StateDict& tensors) {
    std::map<std::string, Floats> values;
    for (const auto& [name, tensor] : tensors)
      values[name] = tensor.shard(all).cast(DType::F32).to_vector<float>();
    return values;
  };
  const nn::StateDict state = nn::state_dict(std::tie(a, b));
  const auto want = values_of(state);
  nn::Elastic elastic;
  elastic.commit(state, {1, 30});
  for (const auto& [name, tensor] : state) tensor.assign(tensor * 2 + 1).realize();
  EXPECT_NE(values_of(state), want);
  EXPECT_EQ(elastic.restore(state), (nn::Progress{1, 30}));
  EXPECT_EQ(values_of(state), want);
  const std::vector<std::pair<Mesh, std::vector<AxisPlacement>>> places = {
      {all.at("pipe", 0), {}}, {all.at("pipe", 1), {}}, {all, {{"pipe", Shard(0)}}}};
  for (const auto& [mesh, placements] : places) {
    nn::StateDict other;
    for (const auto& [name, tensor] : state)
      other[name] = Tensor::zeros(tensor.shape(), tensor.dtype())
                        .shard(mesh, placements)
                        .contiguous()
                        .realize();
    elastic.restore(other);
    EXPECT_EQ(values_of(other), want);
  }
}

TEST(Elastic, Mistakes) {
  if (several_ranks()) GTEST_SKIP() << "one process";
  nn::Elastic elastic;
  const Mesh mesh = Mesh::of({"CPU:0", "CPU:1"});
  const Tensor w = state_of(mesh, {1, 2, 3, 4});
  const Tensor rows = Tensor(Floats{1, 2, 3, 4}, {2, 2}).shard(mesh, {{"data", Shard(0)}});
  const Tensor pending = rows.sum(0);
  const auto commit = [&](const Tensor& x, int64_t step) {
    return message_of<UserError>([&] { elastic.commit({{"w", x}}, {step, 0}); });
  };
  EXPECT_NE(commit(pending, 1).find("a sum that is still to come is no state"), std::string::npos)
      << commit(pending, 1);
  elastic.commit({{"w", w}}, {3, 0});
  EXPECT_NE(commit(w, 3).find("step 3 is not behind the last committed one, 3"), std::string::npos)
      << commit(w, 3);
  const auto restore = [&](const nn::StateDict& tensors) {
    return message_of<UserError>([&] { elastic.restore(tensors); });
  };
  EXPECT_NE(restore({{"v", w}}).find("missing: v"), std::string::npos) << restore({{"v", w}});
  EXPECT_NE(restore({{"w", w.cast(DType::F64)}}).find("was committed as f32"), std::string::npos);
}

}  // namespace
}  // namespace tinyshard::test::elastic_test
