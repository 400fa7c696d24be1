// Shared by suites that compare a mesh of several devices with one device: the devices, which lie
// in an epoch of the suite's own, and the comparison.
//
//   using LookupsTest = OnDevices<4, testing::TestWithParam<Layout>>;
#pragma once
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "core/exec/runtime.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard {

// A suite on the first `kDevices` devices of the kind that is tested; skipped where there are fewer.
template <int kDevices, class Base>
class OnDevices : public Base {
 protected:
  static void SetUpTestSuite() {
    Runtime::shutdown();
    if (device_count() >= kDevices)
      Runtime::configure({.devices = device_names(kDevices), .devices_per_rank = 0});
  }
  void SetUp() override { TINYSHARD_NEED_DEVICES(kDevices); }
  static void TearDownTestSuite() { Runtime::shutdown(); }
};

// Equal shapes, types and values, infinities and NaN among them; `tolerance` is relative to 1 and
// what is wanted. The first element that differs is told.
inline void expect_same(const Tensor& got, const Tensor& want, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  auto a = got.to_vector<double>(), b = want.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;  // infinities, too
    ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << what << " element " << i;
  }
}

}  // namespace tinyshard
