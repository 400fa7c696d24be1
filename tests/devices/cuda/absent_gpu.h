// Tests of what cuDNN would do on a GPU that is not here, from its properties: it checks graphs and
// picks engines without one. Skipped where there is no cuDNN.
#pragma once
#include <dlfcn.h>

#include <gtest/gtest.h>

#include "devices/cuda/cudnn.h"

namespace tinyshard::test {

inline constexpr const char* kH200 =
    R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
    R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":6,"isTccDriver":0,"supportCoopLaunch":1,)"
    R"("totalGlobalMem":150109880320,"smClockRateKHz":1980000,"memClockRateKHz":3201000,)"
    R"("l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,)"
    R"("deviceName":"NVIDIA H200"})";

class AbsentGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const cuda::Cudnn& dnn = cuda::Cudnn::get();
    if (!dnn.found()) GTEST_SKIP() << dnn.why_not();
    if (dnn.number() < 90800) GTEST_SKIP() << "plans for absent GPUs need cuDNN 9.8";
    if (!::dlopen("libcuda.so.1", RTLD_NOW))
      GTEST_SKIP() << "cuDNN makes plans only where libcuda is, a stub at least: " << ::dlerror();
  }
};

}  // namespace tinyshard::test
