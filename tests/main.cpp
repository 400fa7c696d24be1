// main() of the tests that run on any kind of device (ON_GPU in cmake/Testing.cmake): skipped as a
// whole, with the reason, where TS_DEVICES names a kind of which there is none here.
#include <cstdio>

#include "tests/devices.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (const tinyshard::DeviceKind& kind : tinyshard::builtins().devices) {
    if (kind.name != tinyshard::device_kind() || kind.count() > 0) continue;
    std::printf("skipped: no device of kind %s: %s\n", kind.name.c_str(), kind.detail().c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
