// Values of a mesh are those of one device: indices made of floats name the same rows, sums whose
// terms are larger than they are do not overflow, and long sums, running sums and attention without
// keys are as they are on one device.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/jit.h"
#include "tests/multi/one_device.h"

namespace tinyshard::exact_test {
namespace {

using Exact = OnDevices<4, testing::Test>;

Mesh mesh_of(int devices) {
  std::vector<std::string> names;
  for (int i = 0; i < devices; ++i) names.push_back("CPU:" + std::to_string(i));
  return Mesh::of(names, "d");
}

// --- indices made of floats ----------------------------------------------------------------------

using Line = Tensor (*)(const Tensor& places);  // of f32 places 0, 1, .. to f32

struct IndexCase {
  const char* name;
  Line line;
};

const IndexCase kLines[] = {
    {"log2", [](const Tensor& i) { return (i + 1).log2(); }},
    {"log", [](const Tensor& i) { return (i + 1).log(); }},
    {"exp2", [](const Tensor& i) { return (i / 100).exp2(); }},
    {"exp", [](const Tensor& i) { return (i / 150).exp(); }},
    {"sin", [](const Tensor& i) { return (i / 300).sin(); }},
    {"sqrt", [](const Tensor& i) { return i.sqrt(); }},
    {"third", [](const Tensor& i) { return i / 3; }},
    {"reciprocal", [](const Tensor& i) { return 1000 / (i + 1); }},
    {"scaled", [](const Tensor& i) { return i * 0.7137f - 0.3f; }},
    {"remainder", [](const Tensor& i) { return (i * 1.37f).mod(97.3f); }},
};

TEST_F(Exact, IndicesOfFloatsNameTheRowsOfOneDevice) {
  Tensor::manual_seed(2);
  for (int devices : {2, 4}) {
    const Mesh mesh = mesh_of(devices);
    for (int64_t rows : {64, 444}) {
      const Tensor x = Tensor::randn({rows}).realize();
      const Tensor there = x.shard(mesh, {{"d", Shard(0)}}).realize();
      for (const IndexCase& c : kLines) {
        for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
          // Scales at which some place lies at an integer, to a rounding.
          for (int64_t at : {31, 310, 500}) {
            const Tensor places = Tensor::arange(rows + 178).cast(type);
            const double there_is =
                c.line(places).cast(DType::F64).to_vector<double>()[size_t(std::min(at, rows))];
            if (!(std::abs(there_is) > 0.01) || !std::isfinite(there_is)) continue;
            const Tensor index =
                (c.line(places) * float(double(at % 37) / there_is)).cast(DType::I32);
            const auto want = x.gather(0, index).to_vector<float>();
            const auto got =
                there.gather(0, index.shard(mesh, {{"d", Shard(0)}})).to_vector<float>();
            ASSERT_EQ(got, want) << c.name << " as " << name(type) << ", " << rows << " rows on "
                                 << devices << ", at " << at;
            ASSERT_EQ(there.gather(0, index).to_vector<float>(), want) << c.name;
          }
        }
      }
    }
  }
}

// --- terms that are larger than their sum --------------------------------------------------------

struct Scaled {
  const char* name;
  DType type;
  double size, factor;
  Tensor (*scale)(const Tensor& sum, double factor);
};

Tensor times(const Tensor& x, double f) { return x * f; }
Tensor over(const Tensor& x, double f) { return x / (1 / f); }
Tensor by_tensor(const Tensor& x, double f) {
  return x * Tensor::full({1}, f, DType::F64).cast(x.dtype()).contiguous();
}
Tensor by_choice(const Tensor& x, double f) {
  return x * (Tensor::arange(x.numel()).reshape(x.shape()) >= 0)
                 .where(Tensor::full({1}, f), 1)
                 .cast(x.dtype());
}
Tensor twice(const Tensor& x, double f) { return x * std::sqrt(f) * std::sqrt(f); }
Tensor from_zero(const Tensor& x, double f) { return 0 - x * -f; }
Tensor with_itself(const Tensor& x, double f) { return x * f + x * 2; }

TEST_F(Exact, SumsStayFiniteWhereTheirTermsWouldNot) {
  const Scaled kCases[] = {
      {"f16 times", DType::F16, 600, 128, times},
      {"f16 over", DType::F16, 600, 128, over},
      {"f16 by tensor", DType::F16, 600, 128, by_tensor},
      {"f16 by choice", DType::F16, 600, 128, by_choice},
      {"f16 twice", DType::F16, 600, 128, twice},
      {"f16 from zero", DType::F16, 600, 128, from_zero},
      {"f16 with itself", DType::F16, 600, 128, with_itself},
      {"f32 times", DType::F32, 10, 1e38, times},
      {"f32 over", DType::F32, 10, 1e38, over},
      {"f32 by tensor", DType::F32, 10, 1e38, by_tensor},
      {"f32 by choice", DType::F32, 10, 1e38, by_choice},
      {"f32 twice", DType::F32, 10, 1e38, twice},
      {"f32 from zero", DType::F32, 10, 1e38, from_zero},
      {"bf16 times", DType::BF16, 10, 1e38, times},
      {"f64 times", DType::F64, 10, 1e308, times},
  };
  for (int devices : {2, 4}) {
    const Mesh mesh = mesh_of(devices);
    for (const Scaled& c : kCases) {
      // Large terms on each device, whose sum is 1.
      std::vector<double> terms(size_t(devices), 0);
      for (size_t i = 0; i + 1 < terms.size(); i += 2) terms[i] = c.size, terms[i + 1] = -c.size;
      terms.back() += 1;
      const Tensor x = Tensor(terms).cast(c.type).realize();
      const Tensor there = x.shard(mesh, {{"d", Shard(0)}}).realize();
      const Tensor ones = Tensor::ones({devices, 1}, c.type).realize();
      auto product = [&](const Tensor& t) {
        return c.scale(t.reshape({1, devices}).matmul(ones), c.factor);
      };
      auto sum = [&](const Tensor& t) { return c.scale(t.sum(0, true), c.factor); };
      for (const auto& made : {product(there), sum(there)}) {
        const double got = made.cast(DType::F64).item<double>();
        const double want =
            c.scale(Tensor::ones({1}, c.type), c.factor).cast(DType::F64).item<double>();
        EXPECT_NEAR(got, want, 0.02 * want) << c.name << " on " << devices;
      }
      Jit step = [&](Tensor t) { return product(t); };
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(std::isfinite(step(there).cast(DType::F64).item<double>())) << c.name;
    }
  }
}

// Products of long rows, of which each device holds half: 40960 and -39936.
TEST_F(Exact, TwoSumsOfF16MeetWhenTheyAreComplete) {
  constexpr int64_t kHalf = 2048;
  const Mesh mesh = mesh_of(2);
  std::vector<double> values(kHalf, 20);
  values.resize(2 * kHalf, -19.5);
  const Tensor x = Tensor(values, {1, 2 * kHalf}).cast(DType::F16).shard(mesh, {{"d", Shard(1)}});
  auto ones = [&](double sign) {
    return Tensor::full({2 * kHalf, 1}, sign, DType::F16)
        .clone()
        .shard(mesh, {{"d", Shard(0)}})
        .realize();
  };
  const Tensor there = x.realize(), a = ones(1), b = ones(1), c = ones(-1);
  const Tensor sum = (there.matmul(a) + there.matmul(b)).contiguous();
  const Tensor difference = (there.matmul(a) - there.matmul(c)).contiguous();
  for (const Tensor& y : {sum, difference}) EXPECT_EQ(y.cast(DType::F64).item<double>(), 2048);
}

// --- along shards --------------------------------------------------------------------------------

TEST_F(Exact, RunningSumsNeverFall) {
  Tensor::manual_seed(3);
  for (int devices : {2, 3, 4}) {
    const Mesh mesh = mesh_of(devices);
    for (DType type : {DType::F32, DType::F64, DType::BF16}) {
      for (int64_t n : {37, 1024, 5000, 70001}) {
        const Tensor x = (Tensor::rand({n}, type) * (Tensor::rand({n}, type) < 0.1)).realize();
        const auto totals =
            x.shard(mesh, {{"d", Shard(0)}}).cumsum(0).cast(DType::F64).to_vector<double>();
        for (size_t i = 1; i < totals.size(); ++i)
          ASSERT_GE(totals[i], totals[i - 1]) << name(type) << " " << i << " of " << n;
        double sum = 0;
        for (double v : x.cast(DType::F64).to_vector<double>()) sum += v;
        ASSERT_NEAR(totals.back(), sum, (type == DType::BF16 ? 4e-3 : 1e-6) * sum);
      }
    }
    const Tensor w = (Tensor::rand({128256}) * (Tensor::rand({128256}) < 0.02)).realize();
    const Tensor drawn = w.shard(mesh, {{"d", Shard(0)}}).multinomial(1 << 16, true);
    const Tensor there = drawn.to("CPU:0");
    EXPECT_EQ((w.gather(0, there) == 0).sum().item<int64_t>(), 0) << devices;
  }
}

TEST_F(Exact, LongColumnsOfParts) {
  for (int devices : {2, 4}) {
    const Mesh mesh = mesh_of(devices);
    const Tensor x = Tensor::full({262144, 8}, 0.1f).clone().realize();
    for (int dim : {0, 1}) {
      const Tensor there = x.shard(mesh, {{"d", Shard(dim)}}).realize();
      for (double v : there.mean(0).to_vector<double>()) ASSERT_NEAR(v, double(0.1f), 1e-7) << dim;
    }
  }
}

TEST_F(Exact, AttentionWithoutKeys) {
  Tensor::manual_seed(4);
  const Mesh mesh = mesh_of(2);
  for (DType type : {DType::F32, DType::F16}) {
    std::vector<Tensor> x;
    for (int i = 0; i < 3; ++i) x.push_back(Tensor::randn({2, 4, 8, 16}).cast(type).realize());
    const Tensor row = Tensor::arange(8).reshape({8, 1}),
                 column = Tensor::arange(8).reshape({1, 8});
    const Tensor mask = ((column <= row) & (row % 3 != 1)).realize();
    auto results = [&](const std::vector<Tensor>& t) {
      const Tensor y = t[0].scaled_dot_product_attention(t[1], t[2], mask);
      std::vector<Tensor> all = y.square().sum().gradient({t[0], t[1], t[2]});
      all.push_back(y);
      return all;
    };
    const std::vector<Tensor> want = results(x);
    for (int dim : {0, 1, 2}) {  // batch, heads, sequence
      std::vector<Tensor> there;
      for (const Tensor& t : x) there.push_back(t.shard(mesh, {{"d", Shard(dim)}}).realize());
      const std::vector<Tensor> got = results(there);
      for (size_t i = 0; i < got.size(); ++i) {
        for (double v : got[i].to_vector<double>()) ASSERT_TRUE(std::isfinite(v)) << dim;
        expect_same(got[i], want[i], type == DType::F16 ? 2e-2 : 1e-5,
                    "value " + std::to_string(i));
      }
    }
  }
}

// A sum of several -0 is 0, however many of them a device has.
TEST_F(Exact, SumsOfNegativeZeros) {
  const Tensor x = Tensor::full({4, 3}, -0.0).clone().realize();
  for (int devices : {2, 3, 4}) {
    const Mesh mesh = mesh_of(devices);
    for (int dim : {0, 1}) {
      for (DType type : {DType::F32, DType::F64, DType::BF16}) {
        const Tensor there = x.cast(type).shard(mesh, {{"d", Shard(dim)}});
        for (const Tensor& sum :
             {there.sum(dim), there.sum(), there.mean(dim), there.sum(1 - dim)}) {
          for (double v : sum.to_vector<double>())
            EXPECT_FALSE(std::signbit(v)) << devices << " " << dim << " " << name(type);
        }
      }
    }
    const Tensor one = Tensor::full({1, 3}, -0.0).shard(mesh, {{"d", Shard(0)}});
    for (double v : one.sum(0).to_vector<double>()) EXPECT_TRUE(std::signbit(v)) << devices;
  }
}

}  // namespace
}  // namespace tinyshard::exact_test
