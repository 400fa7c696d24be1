// Memory that plans for GPUs take beside the values.
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::memory_plan_test {
namespace {

void configure(int devices) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL_H200"}, .devices_per_rank = devices});
}

// With fewer heads of keys than devices, too, scores of a long sequence do not go through memory.
TEST(MemoryPlan, AttentionOfALongDividedSequence) {
  configure(8);
  const Mesh mesh = Mesh::world({{"seq", -1}});
  for (int64_t heads : {2, 4, 8}) {
    for (bool causal : {false, true}) {
      auto made = [&](int64_t n) {
        return Tensor::empty({1, n, 131072, 128}, DType::BF16)
            .shard(mesh, {{"seq", Shard(2)}})
            .is_param_()
            .realize();
      };
      const Tensor q = made(32), k = made(heads), v = made(heads);
      const Tensor y =
          q.scaled_dot_product_attention(k, v, {}, {.is_causal = causal, .enable_gqa = true});
      EXPECT_LE(summarize(y).arena_bytes, int64_t{3} << 30) << heads << " " << causal;
      y.sum().backward();
      EXPECT_LE(summarize({y, q.grad(), k.grad(), v.grad()}).arena_bytes, int64_t{6} << 30)
          << heads << " " << causal;
    }
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::memory_plan_test
