// Kernels in memory have a limit: what no plan uses goes, what one uses stays.
#include <cstdlib>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/codegen/codegen.h"

namespace tinyshard::kernel_memory_test {
namespace {

class KernelMemory : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    setenv("TS_CACHE", "0", 1);
    setenv("TS_KERNEL_BYTES", "60000", 1);
    reload_options();
    clear_codegen_cache();
    Runtime::configure({.devices = {"CPU"}});
  }
  void TearDown() override {
    Runtime::shutdown();
    unsetenv("TS_CACHE");
    unsetenv("TS_KERNEL_BYTES");
    reload_options();
    clear_codegen_cache();
  }
};

int64_t compiled() { return codegen_statistics().compiled; }

// By kernels of its own for each n.
float sum_of(int64_t n) {
  const Tensor x = Tensor::ones({n}).clone().realize();
  return (x + x).contiguous().sum().item<float>();
}

TEST_F(KernelMemory, OfShapesThatComeOnceLevelsOff) {
  sum_of(7);
  const int64_t before = compiled();
  EXPECT_EQ(sum_of(7), 14);
  EXPECT_EQ(compiled(), before) << "it is in memory";
  for (int64_t n = 100; n < 260; ++n) ASSERT_EQ(sum_of(n), float(2 * n));
  const int64_t after = compiled();
  EXPECT_EQ(sum_of(7), 14);
  EXPECT_GT(compiled(), after) << "it went, and was made anew";
}

TEST_F(KernelMemory, AStepKeepsItsOwn) {
  Jit step = [](Tensor x) { return (x * 3).softmax(-1).sum(0); };
  const Tensor x = Tensor::ones({5, 4}).realize();
  const std::vector<float> expected(4, 1.25F);
  EXPECT_EQ(step(x).to_vector<float>(), expected);
  for (int64_t n = 300; n < 460; ++n) ASSERT_EQ(sum_of(n), float(2 * n));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(x).to_vector<float>(), expected);
}

// A captured step for each length, dropped after its use.
TEST_F(KernelMemory, StepsOfManyLengths) {
  for (int64_t n = 1; n < 60; ++n) {
    Jit step = [](Tensor x) { return (x + 1).cumsum(0); };
    const Tensor x = Tensor::zeros({n}).realize();
    ASSERT_EQ(step(x).to_vector<float>().back(), float(n));
    ASSERT_EQ(step(x).to_vector<float>().back(), float(n));
  }
}

}  // namespace
}  // namespace tinyshard::kernel_memory_test
