// Memory that plans for GPUs take beside the values, and what they read and write.
#include <functional>
#include <tinyshard/tinyshard.h>
#include <vector>

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

PlanSummary forward_and_backward(const Tensor& x, const std::vector<Tensor>& parameters,
                                 const std::function<Tensor(const Tensor&)>& f) {
  TrainingMode on;
  Jit step = [&](Tensor in) {
    const Tensor y = f(in);
    std::vector<Tensor> of = parameters;
    of.push_back(in);
    std::vector<Tensor> out = y.gradient(of, y.detach() * 0 + 1);
    out.push_back(y);
    return out;
  };
  step(x);
  return summarize(step);
}

// Volumes go to the libraries of images in their own type: a window of slices is stored, and not one of
// voxels for each voxel.
TEST(MemoryPlan, ConvolutionsOfVolumes) {
  configure(1);
  const Tensor x = Tensor::zeros({2, 32, 64, 64, 64}, DType::BF16).contiguous().realize();
  const double bytes = double(x.nbytes());
  for (bool transposed : {false, true}) {
    const Tensor w = Tensor::zeros({32, 32, 3, 3, 3}, DType::BF16).contiguous().realize();
    const PlanSummary plan = forward_and_backward(x, {w}, [&](const Tensor& in) {
      return transposed ? in.conv_transpose2d(w, {}, {.padding = 1})
                        : in.conv2d(w, {}, {.padding = 1});
    });
    EXPECT_GE(plan.library_calls, 3) << transposed;
    EXPECT_LE(double(plan.bytes_read + plan.bytes_written), 40 * bytes) << transposed;
    EXPECT_LE(double(plan.arena_bytes), 8 * bytes) << transposed;
  }
  Runtime::shutdown();
}

// Rows of 16 bits that are added up go to the library as they are.
TEST(MemoryPlan, ScatteredSumsOfNarrowRows) {
  configure(1);
  const Tensor x = Tensor::zeros({1000, 256}, DType::BF16).contiguous().realize(),
               index = Tensor::zeros({100000}, DType::I32).contiguous().realize();
  Jit step = [&](Tensor rows, Tensor i) {
    return Tensor::zeros({1000, 256}, DType::BF16)
        .scatter_reduce(0, i.unsqueeze(1).expand({100000, 256}), rows[i] * 2, ScatterReduce::Sum);
  };
  step(x, index);
  const PlanSummary plan = summarize(step);
  const double messages = 100000 * 256 * 2;
  EXPECT_LE(double(plan.bytes_written), 1.1 * messages);
  EXPECT_LE(double(plan.bytes_read), 1.2 * messages);
  EXPECT_LE(double(plan.arena_bytes), 1.1 * messages);
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::memory_plan_test
