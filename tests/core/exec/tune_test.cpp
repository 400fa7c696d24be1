// BEAM among the plans of generated kernels: each kernel is timed once and remembered. On a CPU no plan
// changes a bit.
#include "core/exec/tune.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/observer.h"
#include "core/base/options.h"
#include "tests/io/temp_folder.h"
#include "tests/tuning_choices.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::tune_test {
namespace {

class TuneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TS_CACHE_DIR", folder_.path().c_str(), 1);
    setenv("TS_CACHE", "1", 1);
    setenv("TS_LIBRARIES", "0", 1);
    set_beam("0");
  }
  void TearDown() override {
    for (const char* name : {"BEAM", "TS_CACHE_DIR", "TS_CACHE", "TS_LIBRARIES"}) unsetenv(name);
    reload_options();
  }
  static void set_beam(const char* candidates) {
    setenv("BEAM", candidates, 1);
    reload_options();
  }
  int64_t remembered() const {
    return std::ranges::count_if(test::names_in(folder_.path()),
                                 [](const std::string& name) { return name.ends_with(".choice"); });
  }

 private:
  test::TempFolder folder_;
};

Tensor values(const Dims& shape) {
  return ((Tensor::arange(product(shape)).cast(DType::F32) * 0.37F).sin()).reshape(shape).realize();
}

std::vector<std::vector<float>> results(const Tensor& x, const Tensor& w) {
  const std::vector<Tensor> roots = {
      x.softmax(-1),         x.sum(0),          x.sum(1),
      (x * 2 + 1).gelu(),    x.matmul(w),       x.max(0),
      x.transpose(0, 1) + 1, x.cumsum(1).exp(), x.cast(DType::BF16).sum(1).cast(DType::F32)};
  std::vector<std::vector<float>> out;
  for (const Tensor& root : roots) out.push_back(root.realize().to_vector<float>());
  return out;
}

TEST_F(TuneTest, PlansOfACpuGiveTheSameBitsAndAreRemembered) {
  const Tensor x = values({67, 300}), w = values({300, 41});
  const auto advised = results(x, w);
  EXPECT_EQ(remembered(), 0);
  set_beam("8");
  test::TuningChoices choices("choice ");
  const Observing observing(choices);
  EXPECT_EQ(results(x, w), advised);
  EXPECT_GE(choices.made.size(), 8u);
  EXPECT_GE(remembered(), 8);
  const size_t made = choices.made.size();
  EXPECT_EQ(results(x, w), advised);
  EXPECT_EQ(choices.made.size(), made);
}

// A rate that falls from step to step is no reason to time the step's kernel again.
TEST_F(TuneTest, ConstantsThatChangeComeWithTheCall) {
  const Tensor x = values({300, 7});
  std::vector<std::vector<float>> advised, tuned;
  for (int step = 0; step < 6; ++step)
    advised.push_back((x * (0.37 + 0.01 * step) - 5).to_vector<float>());
  set_beam("8");
  test::TuningChoices choices("choice ");
  const Observing observing(choices);
  for (int step = 0; step < 6; ++step)
    tuned.push_back((x * (0.37 + 0.01 * step) - 5).to_vector<float>());
  EXPECT_EQ(tuned, advised);
  EXPECT_LE(choices.made.size(), 2u);
}

}  // namespace
}  // namespace tinyshard::tune_test
