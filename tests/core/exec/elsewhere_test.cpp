// Values of a mesh that only the first of two ranks holds a device of, as the other rank sees them.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/runtime.h"
#include "core/tensor/tensor.h"
#include "tests/message_of.h"

namespace tinyshard {
namespace {

TEST(Elsewhere, ValuesAreNotCopiedFromDevicesOfOtherRanks) {
  ASSERT_EQ(Runtime::get().ranks(), 2);
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
    if (here) {
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

// A mesh of all ranks needs the value on each of them: all ranks say so, as none could go on.
TEST(Elsewhere, ShardingOverAllRanksNeedsTheValueOnEach) {
  const Mesh first({{"data", 1}}, {world().devices[0]}), all = Mesh::world({{"all", -1}});
  Tensor x = Tensor::ones({4, 3}).shard(first).realize();
  const std::string text = test::message_of<UserError>([&] { x.shard(all).realize(); });
  EXPECT_NE(text.find("rank 1 holds no device of mesh(data=1): its values are elsewhere, and "
                      "mesh(all=2) needs them"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace tinyshard
