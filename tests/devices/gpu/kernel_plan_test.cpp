// Plans and code for GPUs, made without one: what a step is spelled as, and how threads share a kernel.
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/codegen/codegen.h"
#include "core/exec/make_executable.h"
#include "devices/cuda/gpu_target.h"

namespace tinyshard::kernel_plan_test {
namespace {

class KernelPlan : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL_H200"}});
  }
  void TearDown() override { Runtime::shutdown(); }

  // The code of all kernels that compute x on an H100.
  static std::string code_of(const Tensor& x) {
    const std::vector<UOp> roots{x.uop()};
    const Schedule schedule = make_plan(roots);
    Target target = cuda::gpu_target(9, 0, 12080);
    target.multiprocessors = 132;
    std::vector<const KernelSource*> sources;
    for (const Item& item : schedule.items) {
      if (item.kind == Item::Kind::Kernel) sources.push_back(&item.kernel);
    }
    std::string code;
    for (const auto& kernel : compile_kernels(sources, target))
      code.append(kernel->code.bytes.begin(), kernel->code.bytes.end());
    return code;
  }
};

// The gradient by x of a 1x1 convolution with a stride is a product, which is spread out.
TEST_F(KernelPlan, AStridedOneByOneConvolutionHasNoSlowGradient) {
  const Tensor x = Tensor::empty({8, 64, 28, 28}, DType::BF16).is_param_().realize(),
               w = Tensor::empty({128, 64, 1, 1}, DType::BF16).is_param_().realize();
  const Tensor loss = x.conv2d(w, {}, {.stride = 2}).sum();
  const std::string plan = explain(loss.gradient({x, w}), true);
  EXPECT_EQ(plan.find("conv_backward_data"), std::string::npos) << plan;
  EXPECT_NE(plan.find("library dot"), std::string::npos) << plan;
}

// Exchanges between threads are where several share a fold.
TEST_F(KernelPlan, AWindowIsOneThreads) {
  const Tensor x = Tensor::empty({173, 96, 55, 55}, DType::BF16).realize();
  const Tensor largest = x.max_pool2d({3, 3}, {.stride = {2, 2}, .padding = {1}}),
               mean = x.avg_pool2d({3, 3}, {.stride = {2, 2}});
  for (const Tensor& y : {largest, mean}) {
    const std::string code = code_of(y);
    ASSERT_NE(code.find("ld.global"), std::string::npos) << code;
    EXPECT_EQ(code.find("shfl"), std::string::npos) << code;
  }
  // Long rows, and windows too few to fill a GPU, are shared.
  EXPECT_NE(code_of(x.sum(3)).find("shfl"), std::string::npos);
  const Tensor few = Tensor::empty({4, 4, 55, 55}, DType::BF16).realize();
  EXPECT_NE(code_of(few.max_pool2d({3, 3}, {.stride = {2, 2}})).find("shfl"), std::string::npos);
}

}  // namespace
}  // namespace tinyshard::kernel_plan_test
