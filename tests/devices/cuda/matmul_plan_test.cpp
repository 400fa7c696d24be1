// Which operands of products a GPU that is not here would have copied, and which regions it takes.
#include <cstdlib>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "devices/cuda/matmul.h"
#include "devices/cuda/planned_gpu.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard::test::matmul_plan_test {
namespace {

const Target kHopper = cuda::planned_h200().target;
const Target kAmpere = [] {
  Target target = kHopper;
  target.cpu = "sm_80", target.features = "+ptx70", target.multiprocessors = 108;
  return target;
}();

UOp buffer(DType dtype, Dims shape) {
  static int64_t next = 1;
  shape.insert(shape.begin(), next++);
  return UOp::make(Op::Buffer, dtype, {}, shape);
}

// [m, k] times [k, n], each lying along the sum or across it.
LibraryCall product(int64_t m, int64_t k, int64_t n, bool first_along, bool second_along,
                    DType dtype = DType::F32) {
  UOp a = buffer(dtype, {m, k}), b = buffer(dtype, {k, n});
  StridedView first{0, {m, k}, first_along ? Dims{k, 1} : Dims{1, m}},
      second{0, {k, n}, second_along ? Dims{1, k} : Dims{n, 1}};
  return {UOp::make(Op::Dot, dtype, {a, b}, Dims{0}), {first, second}, {}};
}

class WorthCopying : public ::testing::Test {
 protected:
  void SetUp() override { tf32("1"); }
  void TearDown() override { tf32("0"); }
  static void tf32(const char* value) {
    ::setenv("TS_TF32", value, 1);
    reload_options();
  }
  static bool is(const LibraryCall& call, int operand, const Target& target = kHopper) {
    return call.node.src(operand)->numel() <= cuda::matmul_worth_copying(target, call, operand);
  }
};

// The gradient of a weight has both operands across: one of them is enough.
TEST_F(WorthCopying, OneOfTwoThatLieAcross) {
  EXPECT_TRUE(is(product(768, 16384, 3072, false, false), 0));
  EXPECT_TRUE(is(product(1024, 512, 784, false, false), 1)) << "of a small model";
  EXPECT_FALSE(is(product(768, 16384, 3072, true, false), 1));
  EXPECT_FALSE(is(product(768, 16384, 3072, false, true), 0));
}

TEST_F(WorthCopying, ASmallOneOfALongProduct) {
  EXPECT_TRUE(is(product(16384, 3072, 768, true, false), 1)) << "a weight";
  EXPECT_FALSE(is(product(768, 3072, 16384, true, false), 1)) << "many rows";
}

TEST_F(WorthCopying, NothingWhereTheLibraryDoesAsWell) {
  EXPECT_FALSE(is(product(1024, 256, 784, false, false), 1)) << "small";
  EXPECT_FALSE(is(product(768, 16384, 3072, false, false, DType::BF16), 0));
  EXPECT_FALSE(is(product(768, 16384, 3072, false, false), 0, kAmpere));
  tf32("0");
  EXPECT_FALSE(is(product(768, 16384, 3072, false, false), 0)) << "in true f32";
}

// --- regions -------------------------------------------------------------------------------------

TEST(PlannedRegions, AreThoseThatCublasltHas) {
  const PlannedDevice h200 = cuda::planned_h200();
  const UOp a = buffer(DType::BF16, {32, 16}), b = buffer(DType::BF16, {16, 24}),
            row = buffer(DType::BF16, {24});
  auto why_not = [&](const ProductRegion& region) {
    std::string why;
    const UOp x = region_product(region, DType::BF16, a, b, 0, std::span(&row, 1));
    return h200.supports(row_major_call(x), &why) ? std::string("taken") : why;
  };
  for (gpu::Epilogue e : {gpu::Epilogue::Bias, gpu::Epilogue::BiasRelu, gpu::Epilogue::BiasGelu}) {
    EXPECT_EQ(why_not(gpu::product_region(e)), "taken");
  }
  ProductRegion other = gpu::product_region(gpu::Epilogue::Bias);
  other.name = "bias, twice";
  static const ProductRegion kOther = other;
  EXPECT_NE(why_not(kOther).find("bias, twice"), std::string::npos)
      << "one of somebody else, though its number is known: " << why_not(kOther);
}

}  // namespace
}  // namespace tinyshard::test::matmul_plan_test
