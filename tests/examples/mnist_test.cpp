// The digits example as a program, where the data is.
#include <gtest/gtest.h>

#include "tests/examples/run_program.h"
#include "tests/test_data.h"

namespace tinyshard::test::mnist_test {
namespace {

std::filesystem::path data() { return test::test_data() / "data"; }

// The accuracy that a run prints, in per cent; 0 when it fails.
double accuracy(const std::string& flags) {
  TempFolder temp;
  Outcome o = run_program(MNIST " --data '" + data().string() + "' " + flags, temp.path());
  EXPECT_EQ(o.code, 0) << o.err;
  static constexpr std::string_view kLabel = "accuracy ";
  size_t at = o.out.find(kLabel);
  return at == std::string::npos ? 0 : std::strtod(o.out.c_str() + at + kLabel.size(), nullptr);
}

class Mnist : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(data() / "t10k-images-idx3-ubyte.gz"))
      GTEST_SKIP() << "no digits in " << data();
  }
};

TEST_F(Mnist, ConvnetLearnsOnOneDevice) { EXPECT_GT(accuracy("--epochs 2"), 96); }

TEST_F(Mnist, ConvnetLearnsOnFourDevices) {
  EXPECT_GT(accuracy("--epochs 2 --devices CPU:0,CPU:1,CPU:2,CPU:3"), 96);
}

TEST_F(Mnist, MlpLearns) { EXPECT_GT(accuracy("--model mlp --epochs 2"), 92); }

TEST(MnistMistakes, AreOneSentence) {
  TempFolder temp;
  Outcome o = run_program(MNIST " --data nowhere", temp.path());
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("nowhere"), std::string::npos) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_EQ(run_program(MNIST, temp.path()).code, 2);
}

}  // namespace
}  // namespace tinyshard::test::mnist_test
