// Groups of a mesh whose axes do not line up with the ranks, as on 3 ranks of 2 devices:
//
//   mesh(data=2, model=3)   rank 0: positions 0 1   rank 1: 2 3   rank 2: 4 5
//   groups along data       0 3, 1 4, 2 5: each rank has a device in two of these, and no two ranks in the same two
//
// Ranks that made them, or talked in them, each in an order of its own would wait in a circle.
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::groups_ranks_test {
namespace {

TEST(GroupsOfRanks, DoNotWaitInACircle) {
  const int64_t devices = int64_t(world().devices.size());
  ASSERT_EQ(devices, 6);
  const Tensor x = Tensor::arange(12).cast(DType::F32);
  for (const auto& axes : std::vector<std::vector<MeshAxis>>{
           {{"data", 2}, {"model", 3}}, {{"data", 3}, {"model", 2}}, {{"data", 6}}}) {
    const Mesh mesh = Mesh::world(axes);
    for (const MeshAxis& axis : axes) {
      const Tensor split = x.shard(mesh, {{axis.name, Shard(0)}});
      EXPECT_EQ(split.sum().item<float>(), 66);
      Jit step = [&](Tensor t) { return (t * t).sum() + t.shard(mesh).cumsum(0).max(); };
      for (int i = 0; i < 3; ++i) EXPECT_EQ(step(split.realize()).item<float>(), 506 + 66);
    }
  }
}

}  // namespace
}  // namespace tinyshard::groups_ranks_test
