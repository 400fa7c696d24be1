// Where a call differs from tinygrad's, or is the same though one could doubt it: the rows of
// docs/coming-from-tinygrad.md that no page's example shows.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::told_test {
namespace {

using Doubles = std::vector<double>;
const double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Told, ReplaceAsksForTheShapeAlone) {
  Tensor x = Tensor::ones({2});
  x.replace(Tensor{1.5, 2.5}.cast(DType::F16));
  EXPECT_EQ(x.describe(), "f16[2]");
  EXPECT_EQ(x.to_vector<double>(), (Doubles{1.5, 2.5}));
  EXPECT_NE(test::message_of<UserError>([&] { x.replace(Tensor::ones({3})); }), "");
}

TEST(Told, MeansOfIntegersAreFloats) {
  const Tensor index{0, 0, 1}, src{1, 2, 4}, zeros = Tensor::zeros({2}, DType::I32);
  const Tensor means = zeros.scatter_reduce(0, index, src, ScatterReduce::Mean, false);
  EXPECT_EQ(means.dtype(), DType::F32);
  EXPECT_EQ(means.to_vector<double>(), (Doubles{1.5, 4}));
  EXPECT_EQ(zeros.scatter_reduce(0, index, src, ScatterReduce::Sum).dtype(), DType::I32);
}

TEST(Told, AStepTowardsAnotherIntegerIsAFloatByAFloat) {
  const Tensor a(std::vector<uint8_t>{1, 2}), b(std::vector<uint8_t>{5, 201});
  EXPECT_EQ(a.lerp(b, Tensor{0.5, 0.25}).dtype(), DType::F32);
  EXPECT_EQ(a.lerp(b, 0.5).to_vector<double>(), (Doubles{3, 101.5}));
  EXPECT_EQ(a.lerp(b, 1).describe(), "u8[2]");
}

TEST(Told, CopiesAreNoParameters) {
  const Tensor p = Tensor::ones({2}).is_param_();
  (p * 3).sum().backward();
  const Tensor copy = p.clone();
  EXPECT_FALSE(copy.is_param());
  EXPECT_FALSE(copy.grad().defined());
  EXPECT_EQ(copy.to_vector<double>(), (Doubles{1, 1}));
  EXPECT_TRUE(p.grad().defined());
}

// Duplicates, views and constants are inputs like any other.
TEST(Told, AStepTakesAnyTensors) {
  Jit step = [](const Tensor& a, const Tensor& b) { return a * 2 + b; };
  Tensor x{1.0, 2.0};
  const Tensor rows = Tensor{{3.0, 4.0}, {5.0, 6.0}}.realize();
  EXPECT_EQ(step(x, x).to_vector<double>(), (Doubles{3, 6}));
  EXPECT_EQ(step(rows[1], Tensor::full({2}, 0.5)).to_vector<double>(), (Doubles{10.5, 12.5}));
  EXPECT_EQ(step(rows.T()[0], x).to_vector<double>(), (Doubles{7, 12}));
}

TEST(Told, RoundingKeepsIntegersAndNanStays) {
  EXPECT_EQ((Tensor{1, 2}.round().dtype()), DType::I32);
  EXPECT_TRUE(std::isnan(Tensor{kNan}.relu().item<double>()));
  EXPECT_TRUE(std::isnan(Tensor{kNan}.sign().item<double>()));
  EXPECT_NEAR((Tensor{1, 5, 20}.var().item<double>()), 301.0 / 3, 1e-4);
  const Tensor one = Tensor{{{1.0, 2.0, 3.0}}}.interpolate({1}, Interpolation::Linear, true);
  EXPECT_EQ(one.to_vector<double>(), Doubles{1});
}

TEST(Told, HeadersOfFilesAreMultiplesOf64) {
  const auto path = std::filesystem::temp_directory_path() / "told_test.safetensors";
  safe_save({{"b", Tensor::ones({1})}, {"a", Tensor::ones({3})}}, path.string());
  std::ifstream file(path, std::ios::binary);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  EXPECT_EQ((header + sizeof header) % 64, 0u);
  std::string text(header, ' ');
  file.read(text.data(), std::streamsize(header));
  EXPECT_LT(text.find("\"a\""), text.find("\"b\"")) << "sorted by name";
  std::filesystem::remove(path);
}

TEST(Told, PaddingIsPairsThenValueThenMode) {
  EXPECT_EQ((Tensor{1, 2}.pad({{1, 2}}, 7).to_vector<double>()), (Doubles{7, 1, 2, 7, 7}));
  EXPECT_EQ((Tensor{1, 2, 3}.pad({{1, 1}}, 0, PadMode::Reflect).to_vector<double>()),
            (Doubles{2, 1, 2, 3, 2}));
}

// A seed gives the same numbers on any number of devices, other ones than tinygrad's.
TEST(Told, NumbersDoNotDependOnDevices) {
  TINYSHARD_NEED_DEVICES(3);
  Tensor::manual_seed(42);
  const Doubles alone = Tensor::rand({7}).to_vector<double>();
  Tensor::manual_seed(42);
  EXPECT_EQ(Tensor::rand({7}).shard(device_names(3), 0).to_vector<double>(), alone);
}

}  // namespace
}  // namespace tinyshard::told_test
