// Values of a mesh that only the first of two ranks holds a device of, as the other rank sees them.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/message_of.h"

namespace tinyshard::elsewhere_test {
namespace {

TEST(Elsewhere, ValuesAreNotCopiedFromDevicesOfOtherRanks) {
  ASSERT_EQ(Context::get().ranks(), 2);
  const bool here = world().rank == 0;
  const Mesh first({{"data", 1}}, {world().devices[0]});
  const std::vector<float> twelve(12, 1.0f);
  Tensor x = Tensor::ones({4, 3}).shard(first).realize();
  const Tensor lazy = Tensor(twelve, {4, 3}).shard(first);
  const std::vector<std::pair<const char*, std::function<std::vector<float>()>>> reads{
      {"to", [&] { return x.to("CPU").to_vector<float>(); }},
      {"read", [&] { return x.to_vector<float>(); }},
      {"computed", [&] { return (x * 2 - 1).to_vector<float>(); }},
      {"with a value of this process",
       [&] { return (x.to("CPU") * Tensor(twelve, {4, 3})).to_vector<float>(); }},
      {"lazy", [&] { return (lazy * 1).to("CPU").to_vector<float>(); }},
      {"clone", [&] { return x.clone().to("CPU").to_vector<float>(); }},
  };
  for (const auto& [name, read] : reads) {
    const bool is_brought =
        std::string_view(name) != "read" && std::string_view(name) != "computed";
    if (here || is_brought) {
      EXPECT_EQ(read(), twelve) << name;
    } else {
      const std::string text = test::message_of<UserError>([&] { (void)read(); });
      EXPECT_NE(text.find("this process holds no device of mesh(data=1): its values are elsewhere"),
                std::string::npos)
          << name << ": " << text;
      EXPECT_NE(text.find("elsewhere_test.cpp:"), std::string::npos) << name << ": " << text;
    }
  }
  // Where nothing of it is needed, there is nothing to refuse, and the process goes on.
  x.realize();
  (x + 1).realize();
  x.assign(x + 1).realize();
  EXPECT_EQ((Tensor{1, 2} + 1).to_vector<int>(), (std::vector<int>{2, 3}));
}

// A mesh of all ranks gets the value from the rank that has it.
TEST(Elsewhere, ShardingOverAllRanksBringsTheValueToEach) {
  const Mesh first({{"data", 1}}, {world().devices[0]}), all = Mesh::world({{"all", -1}});
  Tensor x = Tensor(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2}).shard(first).realize();
  EXPECT_EQ(x.shard(all).to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ((x + Tensor::ones({3, 2}).shard(all)).to_vector<float>(),
            (std::vector<float>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(x.shard(all, {{"all", Shard(0)}}).sum(0).to_vector<float>(),
            (std::vector<float>{9, 12}));
}

// The device that `to` names is one of each process: all of them get the value from the rank that has
// it.
TEST(Elsewhere, ACapturedStepMayTakeAValueToItsOwnProcess) {
  const Mesh first({{"data", 1}}, {world().devices[0]});
  Tensor x = Tensor(std::vector<float>{1, 2, 3}, {3}).shard(first).realize();
  const std::vector<std::pair<const char*, std::function<Tensor(Tensor)>>> steps{
      {"used at once", [&](Tensor t) { return (x.to("CPU") * t).sum(); }},
      {"given back", [&](Tensor t) { return (x * t.shard(first)).sum().to("CPU"); }}};
  for (const auto& [name, step] : steps) {
    Jit captured = step;
    auto value = [&](int i) { return captured(Tensor::full({3}, double(i))).item<float>(); };
    for (int i = 1; i < 4; ++i) EXPECT_EQ(value(i), 6.0f * float(i)) << name;
  }
  // Both ranks hold a device of the whole mesh, and each takes a copy.
  const Mesh all = Mesh::world({{"all", -1}});
  Tensor split = Tensor(std::vector<float>{1, 2, 3, 4}, {4}).shard(all, {{"all", Shard(0)}});
  Jit step = [&](Tensor t) { return (split.to("CPU") * t).sum(); };
  for (int i = 1; i < 4; ++i)
    EXPECT_EQ(step(Tensor::full({4}, double(i))).item<float>(), 10.0f * float(i));
}

// Each rank takes its values to a device of its own mesh: the ranks build the same, though each names
// itself.
TEST(Elsewhere, ACapturedStepMayUseADeviceOfItsOwnMesh) {
  const Mesh all = Mesh::world({{"data", -1}}), own = all.at("data", world().rank);
  Jit sharded = [&](Tensor t) { return t.shard(own) + 1; };
  Jit multiplied = [&](Tensor t) { return (t * 2).shard(own).sum() * 3; };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = Tensor::full({4}, double(i)).realize();
    EXPECT_EQ(sharded(x).to_vector<float>(), std::vector<float>(4, float(i + 1)));
    EXPECT_EQ(multiplied(x).item<float>(), float(24 * i));
  }
}

// A value that lies there already stays where it is; the result is a tensor of its own.
TEST(Elsewhere, ToTheOwnDeviceCopiesNothing) {
  Tensor x = Tensor(std::vector<float>{1, 2, 3}, {3}), y = x.to("CPU").realize();
  EXPECT_EQ(y.sharding().to_string(), x.sharding().to_string());
  x.assign(x + 1);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2, 3, 4}));
}

}  // namespace
}  // namespace tinyshard::elsewhere_test
