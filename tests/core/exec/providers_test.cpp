// BEAM between a library and generated loops: what is timed, what is remembered, and that the choice
// changes neither values nor counts.
#include "core/exec/providers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/exec/executable.h"
#include "tests/devices.h"
#include "tests/tuning_choices.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::providers_test {
namespace {

class ProvidersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("providers_" + std::to_string(getpid()));
    std::filesystem::create_directory(folder_);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    setenv("TS_CACHE_DIR", folder_.c_str(), 1);
    set_beam("4");
  }
  void TearDown() override {
    unsetenv("BEAM");
    unsetenv("TS_CACHE_DIR");
    reload_options();
    std::filesystem::remove_all(folder_);
  }
  static void set_beam(const char* candidates) {
    setenv("BEAM", candidates, 1);
    reload_options();
  }

  int64_t remembered() const {  // choices in the folder of compiled kernels
    return std::ranges::count_if(
        std::filesystem::recursive_directory_iterator(folder_),
        [](const auto& file) { return file.path().extension() == ".provider"; });
  }

 private:
  std::filesystem::path folder_;
};

Tensor values(const Dims& shape) {
  return ((Tensor::arange(product(shape)).cast(DType::F32) * 0.37F).sin()).reshape(shape).realize();
}

void expect_near(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-4) << i;
}

TEST_F(ProvidersTest, TimeAProductOnceForEachLayoutAndKeepItsValue) {
  const Tensor a = values({12, 200}), b = values({200, 48}), c = values({48, 200});
  test::TuningChoices choices("library:");
  Tensor by_rows, by_columns;
  {
    const Observing observing(choices);
    by_rows = a.matmul(b).realize();
    (void)(a * 2).matmul(b).realize();  // what operands are made of does not matter
    by_columns = a.matmul(c.transpose(0, 1)).realize();
  }
  EXPECT_EQ(choices.made.size(), 2);
  EXPECT_EQ(remembered(), 2);
  for (const std::string& made : choices.made) {
    EXPECT_NE(made.find(": dot f32[12, 48]"), std::string::npos) << made;
    EXPECT_NE(made.find("loops:"), std::string::npos) << made;
  }
  set_beam("0");
  expect_near(by_rows, a.matmul(b));
  expect_near(by_columns, a.matmul(c.transpose(0, 1)));
}

TEST_F(ProvidersTest, TimeConvolutionsAndTheirGradients) {
  const Tensor x = values({2, 3, 12, 12}), w = values({4, 3, 3, 3});
  auto gradients = [&] { return x.conv2d(w).square().sum().gradient({x, w}); };
  test::TuningChoices choices("library:");
  std::vector<Tensor> timed;
  {
    const Observing observing(choices);
    timed = gradients();
    Tensor::realize(timed);
  }
  EXPECT_EQ(choices.made.size(), 3);
  set_beam("0");
  const std::vector<Tensor> plain = gradients();
  for (size_t i = 0; i < plain.size(); ++i) expect_near(timed[i] / 100.0F, plain[i] / 100.0F);
}

// Two devices share a sum: each reads its columns of an operand that both hold whole.
TEST_F(ProvidersTest, TimeWhatADeviceSeesOfAnOperand) {
  TINYSHARD_NEED_DEVICES(2);
  const Tensor a = values({6, 200}), b = values({200, 40});
  const Tensor whole = a.shard(device_names(2)), divided = b.shard(device_names(2), 0);
  test::TuningChoices choices("library:");
  const Observing observing(choices);
  const Tensor product = whole.matmul(divided).realize();
  EXPECT_EQ(choices.made.size(), 1);
  set_beam("0");
  expect_near(product, a.matmul(b));
}

// Devices are opened when they are named; not all are among those of the options.
TEST_F(ProvidersTest, TimeOnADeviceThatIsNamedLater) {
  const std::string other = device_kind() == "CPU" ? "CPU:5" : "CPU:0";
  const Tensor a = values({16, 120}).to(other), b = values({120, 24}).to(other);
  test::TuningChoices choices("library:");
  const Observing observing(choices);
  (void)a.matmul(b).realize();
  ASSERT_EQ(choices.made.size(), 1);
  EXPECT_TRUE(choices.made[0].starts_with(other + ": dot")) << choices.made[0];
}

// Timing is no part of a program: neither of what it counts, nor of the plan that a step will have.
TEST_F(ProvidersTest, TimingLeavesNoTrace) {
  const Tensor a = values({20, 30}), b = values({30, 40});
  counters().reset();
  const Tensor c = a.matmul(b);
  const PlanSummary planned = summarize(c);
  EXPECT_EQ(counters().runs, 0);
  c.realize();
  EXPECT_EQ(counters().runs, 1);
  EXPECT_EQ(counters().kernels, planned.kernels);
  EXPECT_EQ(counters().library_calls, planned.library_calls);
}

TEST_F(ProvidersTest, ACapturedStepIsTimedAtItsFirstCall) {
  const Tensor a = values({14, 100}), b = values({100, 6});
  Jit step = [&](const Tensor& x) { return (x.matmul(b) + 1).relu(); };
  test::TuningChoices choices("library:");
  const Observing observing(choices);
  const std::vector<float> first = step(a).to_vector<float>();
  EXPECT_EQ(choices.made.size(), 1);
  EXPECT_EQ(step(a).to_vector<float>(), first);
  EXPECT_EQ(choices.made.size(), 1);
}

// Also of a product that keeps a library busy for long, the first work items of loops tell how slow these
// are (kernel_trial_test.cpp).
TEST_F(ProvidersTest, LargeProductsAreTimed) {
  const Tensor a = values({1500, 1500});
  test::TuningChoices choices("library:");
  const Observing observing(choices);
  const PlanSummary plan = summarize(a.matmul(a));
  ASSERT_EQ(choices.made.size(), 1);
  const bool library = choices.made[0].find("library of") != std::string::npos;
  EXPECT_NE(choices.made[0].find(library ? "loops: " : "loops of"), std::string::npos);
  EXPECT_EQ(plan.library_calls, library ? 1 : 0);
}

TEST_F(ProvidersTest, WithoutBeamNothingIsTimed) {
  set_beam("0");
  test::TuningChoices choices("library:");
  const Observing observing(choices);
  (void)values({9, 31}).matmul(values({31, 7})).realize();
  EXPECT_TRUE(choices.made.empty());
}

}  // namespace
}  // namespace tinyshard::providers_test
