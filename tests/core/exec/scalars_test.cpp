// Constants that change from step to step: how often code is made, and that values have the bits of
// a step whose code has the constants.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/codegen/codegen.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/state.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard::scalars_test {
namespace {

int64_t made() {
  const CodegenStatistics s = codegen_statistics();
  return s.compiled + s.disk_hits;
}

Tensor data(const Dims& shape, DType type) {
  std::vector<float> values(size_t(product(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(float(i) * 0.7f) * 3;
  return Tensor(values, shape).cast(type).realize();
}

// Every float type's values are doubles; NaNs are one.
std::vector<uint64_t> bits(const Tensor& x) {
  std::vector<uint64_t> all;
  for (double v : x.cast(DType::F64).to_vector<double>())
    all.push_back(std::isnan(v) ? ~uint64_t{0} : std::bit_cast<uint64_t>(v));
  return all;
}

using Step = std::function<Tensor(const Tensor&, double)>;

// As the code has it that has the constant: a captured step is compiled with its constants.
Tensor with_the_constant(const Step& step, const Tensor& x, double c) {
  Jit captured = [&](Tensor t) { return step(t, c); };
  return captured(x).clone().realize();
}

TEST(Scalars, ARateThatFallsIsCompiledTwice) {
  Tensor x = data({64, 33}, DType::F32), w = data({64, 33}, DType::F32);
  std::vector<int> makers;  // steps that made code
  double rate = 0.1;
  for (int i = 0; i < 50; ++i, rate *= 0.97) {
    const int64_t before = made();
    w = (w - x * rate).realize();
    if (made() > before) makers.push_back(i);
  }
  EXPECT_EQ(makers, (std::vector<int>{0, 1}));
}

// Scales of a loss are powers of two, and so are rates that are halved.
TEST(Scalars, PowersOfTwoAreCompiledTwice) {
  Tensor x = data({64, 30}, DType::F32), w = data({64, 30}, DType::F32);
  const std::vector<std::pair<const char*, Step>> steps{
      {"scaled", [&](const Tensor& t, double c) { return w + t * c; }},
      {"scaled back", [&](const Tensor& t, double c) { return w - t / c; }},
      {"a whole number", [&](const Tensor& t, double c) { return w.cast(DType::I32) * c + t; }},
  };
  for (const auto& [name, step] : steps) {
    std::vector<int> makers;
    for (int i = 0; i < 20; ++i) {
      const double c = std::exp2(i + 1);
      const int64_t before = made();
      const Tensor y = step(x, c).realize();
      if (made() > before) makers.push_back(i);
      EXPECT_EQ(bits(y), bits(with_the_constant(step, x, c))) << name << " " << c;
    }
    // A GPU divides by a power of two exactly, and by other numbers nearly so.
    if (Context::get().device(default_mesh().devices()[0]).target().multiprocessors > 0) continue;
    EXPECT_EQ(makers, (std::vector<int>{0, 1})) << name;
  }
}

TEST(Scalars, AnAssignedStorageIsNoOtherKernel) {
  Tensor x = data({64, 31}, DType::F32), w = data({64, 31}, DType::F32);
  int64_t before = 0;
  double rate = 0.1;
  for (int i = 0; i < 50; ++i, rate *= 0.97) {
    w.assign(w - x * rate).realize();
    if (i == 2) before = made();
  }
  EXPECT_EQ(made(), before);
}

TEST(Scalars, EachFormKeepsTheBitsOfItsConstant) {
  const std::vector<std::pair<const char*, Step>> steps{
      {"scaled", [](const Tensor& x, double c) { return x * c; }},
      {"divided", [](const Tensor& x, double c) { return x / c; }},
      {"divides", [](const Tensor& x, double c) { return c / x; }},
      {"moved", [](const Tensor& x, double c) { return (x + c).exp(); }},
      {"clipped", [](const Tensor& x, double c) { return x.maximum(c).minimum(2 * c + 3); }},
      {"chosen", [](const Tensor& x, double c) { return (x < c).where(x * c, c); }},
      {"power", [](const Tensor& x, double c) { return x.abs().pow(c); }},
      {"base", [](const Tensor& x,
                  double c) { return Tensor::full({}, std::abs(c)).cast(x.dtype()).pow(x); }},
      {"summed", [](const Tensor& x, double c) { return (x * c).sum(1); }},
      {"two", [](const Tensor& x, double c) { return x * c + (1 - c); }},
      {"twice", [](const Tensor& x, double c) { return x * c + c; }},
      {"norm", [](const Tensor& x, double c) { return (x * c + 0.3).softmax(1) * c; }},
      {"only", [](const Tensor& x, double c) { return Tensor::full({5, 7}, c, x.dtype()); }},
  };
  // 0 and 1 are folded; others, equal ones among them, are not.
  const double values[] = {0.3, 0.29, 0, 1, 0.28, -1, 2, 0.25, -0.7, 1e-30, 0.3, 1e30, -8, 1024};
  for (DType type : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
    Tensor x = data({9, 37}, type);
    for (const auto& [name, step] : steps) {
      for (double c : values) {
        EXPECT_EQ(bits(step(x, c).realize()), bits(with_the_constant(step, x, c)))
            << name << " " << tinyshard::name(type) << " " << c;
      }
    }
  }
}

// Numbers that are added, multiplied, compared and chosen, but do not divide or shift.
TEST(Scalars, ACounterIsCompiledTwice) {
  for (DType type : {DType::I32, DType::I64, DType::U8, DType::I16}) {
    Tensor x = Tensor::arange(100).cast(type).realize();
    std::vector<int> makers;
    for (int i = 0; i < 20; ++i) {
      const int step = 50 + 2 * i;
      const int64_t before = made();
      Tensor y = ((x < step).where(x * step, x + step).maximum(step) ^ step).realize();
      if (made() > before) makers.push_back(i);
      std::vector<int64_t> expected;
      for (int k = 0; k < 100; ++k) {
        const int64_t chosen = k < step ? k * step : k + step;
        auto in_type = [&](int64_t v) {
          return type == DType::U8    ? int64_t{static_cast<uint8_t>(v)}
                 : type == DType::I16 ? int64_t{static_cast<int16_t>(v)}
                                      : v;
        };
        expected.push_back(in_type(std::max<int64_t>(in_type(chosen), step) ^ step));
      }
      EXPECT_EQ(y.cast(DType::I64).to_vector<int64_t>(), expected) << name(type) << " " << step;
    }
    EXPECT_EQ(makers, (std::vector<int>{0, 1})) << name(type);
  }
}

TEST(Scalars, DivisorsArePartsOfTheCode) {
  Tensor x = Tensor::arange(100).cast(DType::I32).realize();
  for (int64_t i = 0; i < 12; ++i) {
    std::vector<int32_t> expected;
    for (int32_t k = 0; k < 100; ++k)
      expected.push_back(int32_t(k * (i + 3) + (k < i + 3 ? k % (i + 1) : 7)));
    Tensor y = x * (i + 3) + (x < i + 3).where(x % (i + 1), 7);
    EXPECT_EQ(y.to_vector<int32_t>(), expected);
  }
}

// Several kernels in each of many steps: a training that is not captured, with a rate, a decay and a
// scale that change.
struct Training {
  std::vector<std::vector<uint64_t>> values;
  int64_t kernels = 0;  // of one step
  int64_t made = 0;
};
Training train(int steps) {
  Tensor w = data({24, 17}, DType::F32), momentum = (data({24, 17}, DType::F32) * 0.1).realize();
  const Tensor x = data({24, 17}, DType::F32);
  Training result;
  const int64_t before = made();
  double rate = 0.125, scale = 4;
  for (int i = 0; i < steps; ++i, rate *= 0.99, scale *= i % 3 == 2 ? 2 : 1) {
    const int64_t run = counters().kernels;
    Tensor loss = ((w * x).softmax(1).sum(0) * scale).realize();
    momentum = (momentum * (0.9 - 0.001 * i) + loss / scale * rate).realize();
    w = (w - momentum * rate + Tensor::full({24, 1}, rate)).realize();
    result.kernels = counters().kernels - run;
    result.values.push_back(bits(w));
  }
  result.made = made() - before;
  return result;
}

class ScalarsOff : public testing::Test {
 protected:
  static void set(const char* variable, const std::string& value) {
    if (value.empty())
      unsetenv(variable);
    else
      setenv(variable, value.c_str(), 1);
    reload_options();
  }
  void TearDown() override {
    for (const char* variable : {"TS_DISABLE_PASSES", "TS_CACHE_DIR", "TS_CACHE"})
      set(variable, "");
    clear_codegen_cache();
  }
};

TEST_F(ScalarsOff, AHundredStepsMakeTwoKernelsPerItem) {
  set("TS_CACHE", "0");
  const Training on = train(100);
  EXPECT_GT(on.kernels, 3);
  EXPECT_LE(on.made, 2 * on.kernels);
  clear_codegen_cache();
  set("TS_DISABLE_PASSES", "constants,offsets");
  const Training off = train(100);
  EXPECT_GT(off.made, 200);  // each with constants of its own
  EXPECT_EQ(on.values, off.values);
}

// The code that takes constants is on disk like any other.
TEST_F(ScalarsOff, TheDiskHasThem) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("scalars_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  set("TS_CACHE_DIR", folder.string());
  set("TS_CACHE", "1");
  clear_codegen_cache();
  const Tensor x = data({64, 29}, DType::F32);
  auto scaled = [&](double c) { return bits((x * c - 3).realize()); };
  scaled(0.3);
  const auto expected = scaled(0.7);
  scaled(0.9);
  clear_codegen_cache();
  const CodegenStatistics before = codegen_statistics();
  EXPECT_EQ(scaled(0.7), expected);
  scaled(0.6);
  const CodegenStatistics after = codegen_statistics();
  EXPECT_EQ(after.compiled, before.compiled);
  EXPECT_GT(after.disk_hits, before.disk_hits);
  std::filesystem::remove_all(folder);
}

TEST(Scalars, EachThreadHasItsOwn) {
  const Tensor x = data({64, 28}, DType::F32);
  std::vector<std::vector<float>> found(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto y = (x * (0.3 + t + 0.01 * i) + 0.7).to_vector<float>();
        found[size_t(t)].push_back(y[77]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const float value = x.to_vector<float>()[77];
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 20; ++i) {
      const float product = value * float(0.3 + t + 0.01 * i);
      EXPECT_EQ(found[size_t(t)][size_t(i)], product + 0.7F) << t << " " << i;
    }
  }
}

TEST(Scalars, AreThoseOfEachDeviceOfAMesh) {
  Mesh mesh({{"data", 2}}, {{"CPU", DeviceRef::kHere, 0}, {"CPU", DeviceRef::kHere, 1}});
  Tensor x = data({7, 5}, DType::F32), split = x.shard(mesh, {{"data", Shard(0)}}).realize();
  for (double c : {0.1, 0.3, 0.7, 0.9})
    EXPECT_EQ((split * c + 0.2).to_vector<float>(), (x * c + 0.2).to_vector<float>()) << c;
}

}  // namespace
}  // namespace tinyshard::scalars_test
