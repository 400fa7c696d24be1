// nn::Elastic in one process; scripts/elastic.py has it among ranks that die.
#include "core/nn/elastic.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::test {
namespace {

using Floats = std::vector<float>;

Tensor state_of(const Mesh& mesh, const Floats& values) {
  return Tensor(values, {int64_t(values.size())}).shard(mesh).contiguous().realize();
}

TEST(Elastic, WhatWasCommittedOutlivesTheRuntime) {
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

TEST(Elastic, Mistakes) {
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
}  // namespace tinyshard::test
