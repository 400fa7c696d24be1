// The targets of GPUs that are not here.
#include "devices/cuda/gpu_target.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard::cuda::gpu_target_test {
namespace {

constexpr int kDriver = 13000;

std::string cpu(int major, int minor) { return gpu_target(major, minor, kDriver).cpu; }

TEST(GpuTarget, IsTheGpusOwnWhereItIsKnown) {
  EXPECT_EQ(cpu(7, 0), "sm_70");
  EXPECT_EQ(cpu(8, 0), "sm_80");
  EXPECT_EQ(cpu(8, 9), "sm_89");
  EXPECT_EQ(cpu(9, 0), "sm_90a");
  EXPECT_TRUE(is_hopper(gpu_target(9, 0, kDriver)));
  EXPECT_TRUE(has_clusters(gpu_target(9, 0, kDriver)));
  EXPECT_FALSE(has_clusters(gpu_target(8, 9, kDriver)));
}

TEST(GpuTarget, IsTheNewestKnownOneForWhatIsNewer) {
  EXPECT_EQ(cpu(8, 8), "sm_87");
  for (auto [major, minor] : {std::pair{10, 0}, {10, 3}, {11, 0}, {12, 0}, {12, 1}}) {
    Target target = gpu_target(major, minor, kDriver);
    EXPECT_EQ(target.cpu, "sm_90");
    EXPECT_FALSE(is_hopper(target)) << "what is Hopper's alone";
    EXPECT_TRUE(has_clusters(target));
  }
}

TEST(GpuTarget, HasPtxThatTheDriverReads) {
  EXPECT_EQ(gpu_target(9, 0, 13000).features, "+ptx83");
  EXPECT_EQ(gpu_target(9, 0, 12010).features, "+ptx80");
  EXPECT_EQ(gpu_target(8, 0, 11080).features, "+ptx78");
}

TEST(GpuTarget, IsNoneForAGpuThatIsTooOld) {
  try {
    gpu_target(5, 2, kDriver);
    FAIL() << "no error";
  } catch (const DeviceError& e) {
    EXPECT_NE(std::string(e.what()).find("5.2 is too old"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tinyshard::cuda::gpu_target_test
