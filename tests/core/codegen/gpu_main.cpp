// Runs the tests of generated kernels on the first GPU.
//   codegen_gpu_test [--ptx=FOLDER] [GoogleTest options]
#include <cstdio>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/core/codegen/gpu_machine.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using namespace tinyshard::test;
  std::string reason;
  if (argc > 1 && std::strncmp(argv[1], "--ptx=", 6) == 0) {
    use_machine(make_ptx_writer(argv[1] + 6));
  } else if (auto gpu = make_gpu_machine(reason)) {
    use_machine(std::move(gpu));
  } else {
    std::printf("skipped: no GPU to run on: %s\n", reason.c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
