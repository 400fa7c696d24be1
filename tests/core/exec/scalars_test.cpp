// Constants that change from step to step: how often code is made, and that values have the bits of
// a step whose code has the constants.
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/codegen/codegen.h"
#include "core/exec/context.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard {
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
  // 0, 1 and powers of two are folded; others, equal ones among them, are not.
  const double values[] = {0.3, 0.29, 0, 1, 0.28, -1, 2, 0.25, -0.7, 1e-30, 0.3, 1e30};
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

// Those that are added, multiplied, compared and chosen; not those that divide or shift.
TEST(Scalars, ACounterIsCompiledTwice) {
  for (DType type : {DType::I32, DType::I64, DType::U8, DType::I16}) {
    Tensor x = Tensor::arange(100).cast(type).realize();
    std::vector<int> makers;
    for (int i = 0; i < 20; ++i) {
      const int step = 33 + 2 * i;  // no power of two
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

TEST(Scalars, AreThoseOfEachDeviceOfAMesh) {
  Mesh mesh({{"data", 2}}, {{"CPU", DeviceRef::kHere, 0}, {"CPU", DeviceRef::kHere, 1}});
  Tensor x = data({7, 5}, DType::F32), split = x.shard(mesh, {{"data", Shard(0)}}).realize();
  for (double c : {0.1, 0.3, 0.7, 0.9})
    EXPECT_EQ((split * c + 0.2).to_vector<float>(), (x * c + 0.2).to_vector<float>()) << c;
}

}  // namespace
}  // namespace tinyshard
