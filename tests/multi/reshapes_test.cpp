// Reshapes of small values whose dims divide over some device or over none, or are of one element
// or of none: each split dim, from each shape to each other one.
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/devices.h"

namespace tinyshard::reshapes_test {
namespace {

TEST(Reshapes, KeepTheOrderOfElements) {
  TINYSHARD_NEED_DEVICES(4);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(4), .devices_per_rank = 0});
  const std::vector<std::vector<Dims>> shapes{
      {{}, {1}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1}},
      {{0}, {0, 1}, {1, 0}, {0, 3}, {3, 0}, {2, 0, 5}},
      {{6}, {1, 6}, {6, 1}, {2, 3}, {3, 2}, {1, 2, 1, 3, 1}, {3, 1, 2}},
      {{8, 4}, {32}, {4, 8}, {2, 16}, {16, 2}, {1, 32}, {2, 2, 8}, {4, 2, 4}, {8, 2, 2, 1}},
  };
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"d", 4}}, std::vector<MeshAxis>{{"d", 3}},
        std::vector<MeshAxis>{{"e", 2}, {"d", 2}}}) {
    const Mesh mesh(axes);
    for (const std::vector<Dims>& equal : shapes) {
      const Tensor line = (Tensor::arange(product(equal[0])) + 1).realize();
      for (const Dims& from : equal) {
        for (int dim = 0; dim < int(from.size()); ++dim) {
          const Tensor split = line.reshape(from).shard(mesh, {{"d", Shard(dim)}}).realize();
          for (const Dims& to : equal) {
            const Tensor there = split.reshape(to);
            EXPECT_EQ(there.shape(), to);
            EXPECT_EQ((there * 2).to_vector<int>(), (line * 2).to_vector<int>())
                << fmt::format("{} split along {} to {} on {}", to_string(from), dim, to_string(to),
                               mesh.to_string());
          }
        }
      }
    }
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::reshapes_test
