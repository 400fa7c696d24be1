// Threads that compute while the process exits, or compile for the first time: it ends with the status
// that was asked for.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sanitized.h"

namespace tinyshard {
namespace {

void wait(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// New kernels all the time, products by a library, random numbers of known shapes.
void compile() {
  for (int i = 1;; ++i) (Tensor::ones({i}) * i).exp().sum().realize();
}
void multiply() {
  for (int i = 64;; ++i) Tensor::ones({i, 256}).matmul(Tensor::ones({256, 256})).realize();
}
void draw() {
  for (;;) Tensor::rand({64, 64}).sum().item<float>();
}
void replay() {
  Jit step = [](Tensor x) { return (x * 2).sum(); };
  const Tensor x = Tensor::ones({1 << 16}).realize();
  for (;;) step(x).item<float>();
}

class ProcessExit : public testing::TestWithParam<void (*)()> {
 protected:
  ProcessExit() {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    setenv("TS_CACHE", "0", 1);  // kernels are compiled by each process
  }
};

TEST_P(ProcessExit, HasTheStatusThatWasAskedFor) {
  const std::vector<int> all{2, 5, 8, 11, 14, 18, 22, 30, 55, 80, 105, 130}, few{2, 11, 30, 130};
  for (int moment : test::kSanitized ? few : all) {  // a process takes a second under a sanitizer
    auto exits = [&] {
      for (int t = 0; t < 2; ++t) std::thread(GetParam()).detach();
      wait(moment);
      std::exit(7);
    };
    EXPECT_EXIT(exits(), testing::ExitedWithCode(7), "") << moment;
  }
}

TEST_P(ProcessExit, OfAThreadBesideThatComputes) {
  auto exits = [] {
    std::thread(GetParam()).detach();
    std::thread([] {
      Tensor::ones({3}).sum().item<float>();
      wait(30);
      std::exit(7);
    }).join();
  };
  EXPECT_EXIT(exits(), testing::ExitedWithCode(7), "");
}

TEST_P(ProcessExit, MayBeQuick) {
  auto exits = [] {
    std::thread(GetParam()).detach();
    wait(40);
    std::quick_exit(7);
  };
  EXPECT_EXIT(exits(), testing::ExitedWithCode(7), "");
}

std::string name_of(const testing::TestParamInfo<void (*)()>& info) {
  const char* names[] = {"Compile", "Multiply", "Draw", "Replay"};
  return names[info.index];
}

INSTANTIATE_TEST_SUITE_P(Threads, ProcessExit, testing::Values(compile, multiply, draw, replay),
                         name_of);

}  // namespace
}  // namespace tinyshard
