// The same values, however a tensor is divided: every row of the table is computed on one device
// and on two to five, divided by rows and by columns, evenly or not.
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard::sharding_test {
namespace {

struct Row {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& other)>
      call;  // of [6, 4]; other is not divided
};

const std::vector<Row>& rows() {
  using T = const Tensor&;
  static const std::vector<Row> table = {
      {"elementwise", [](T x, T y) { return (x * 2 + y).exp() - 1; }},
      {"broadcast", [](T x, T y) { return x + y[0] * x[{Slice(), Slice(0, 1)}]; }},
      {"compare", [](T x, T y) { return (x < y + 1).where(x, y); }},
      {"random", [](T x, T) { return Tensor::manual_seed(3), x + Tensor::rand({6, 4}); }},
      {"iota", [](T x, T) { return x * Tensor::arange(4) + Tensor::arange(6).unsqueeze(1); }},
      {"sum", [](T x, T) { return (x + 1).sum(); }},
      {"sum_rows", [](T x, T) { return (x + 1).sum(0); }},
      {"sum_columns", [](T x, T) { return (x + 1).sum(1); }},
      {"mean", [](T x, T) { return x.exp().mean(1); }},
      {"max", [](T x, T) { return (-x).max(); }},
      {"min_rows", [](T x, T) { return x.min(0); }},
      {"min_int", [](T x, T) { return x.to_int().min(); }},
      {"max_long", [](T x, T) { return (-x).to_long().max(0); }},
      {"min_byte", [](T x, T) { return x.cast(DType::U8).min(); }},
      {"prod", [](T x, T) { return (x * 0.3).prod(); }},
      {"all", [](T x, T) { return (x < 100).all(); }},
      {"any", [](T x, T) { return (x > 100).any(1); }},
      {"argmax", [](T x, T) { return (-x).argmax(); }},
      {"argmin_rows", [](T x, T) { return x.argmin(0); }},
      {"argmax_nan", [](T x, T) { return (x > 10).where(NAN, x).argmax(); }},
      {"argmin_nan_rows", [](T x, T) { return (x > 10).where(NAN, x).argmin(0); }},
      {"power", [](T x, T y) { return (x - 5.5).pow(y.round()) + x.pow(-2); }},
      {"compare_beyond", [](T x, T) { return (x.cast(DType::U8) > -1) & (x.to_int() < 1e30); }},
      {"var", [](T x, T) { return x.var(); }},
      {"softmax", [](T x, T) { return x.softmax(0) + x.softmax(1); }},
      {"logsumexp", [](T x, T) { return x.logsumexp({0, 1}); }},
      {"layernorm", [](T x, T) { return x.layernorm({0, 1}); }},
      {"reshape_joins", [](T x, T) { return x.reshape({24}) + 1; }},
      {"reshape_mixes", [](T x, T) { return x.reshape({4, 6}) + 1; }},
      {"reshape_splits", [](T x, T) { return x.reshape({2, 3, 4}).sum(1); }},
      {"permute", [](T x, T y) { return x.T() + y.T(); }},
      {"expand", [](T x, T) { return x.unsqueeze(1).expand({6, 3, 4}).sum({0, 1}); }},
      {"pad", [](T x, T) { return x.pad({{1, 2}, {2, 0}}, 3).cumsum(0); }},
      {"shrink", [](T x, T) { return x[{Slice(1, 5), Slice(2, {})}]; }},
      {"steps", [](T x, T) { return x[{Slice({}, {}, 2), Slice({}, {}, -1)}]; }},
      {"flip", [](T x, T) { return x.flip(0) * Tensor::arange(6).unsqueeze(1); }},
      {"roll", [](T x, T) { return x.roll({1, 1}, {0, 1}); }},
      {"cat", [](T x, T y) { return cat({x, y, x + 1}, 1).max(0); }},
      {"stack", [](T x, T y) { return stack({x, y}); }},
      {"split", [](T x, T) { return x.split({1, 3}, 1)[1].sum(0); }},
      {"gather", [](T x, T) { return x.gather(0, Tensor{{0, 1, 5, 2}, {3, 3, 3, 3}}); }},
      {"embedding", [](T x, T) { return x.embedding(Tensor{5, 1, 2}); }},
      {"index", [](T x, T) { return x[{Tensor{5, 0}, Tensor{-1, 2}}]; }},
      {"one_hot", [](T x, T) { return x.to_int().one_hot(9); }},
      {"matmul_left", [](T x, T y) { return x.matmul(y.T()); }},
      {"matmul_right", [](T x, T y) { return y.T().matmul(x); }},
      {"matmul_both", [](T x, T) { return x.T().matmul(x); }},
      {"linear_chain", [](T x, T y) { return x.matmul(y.T()).relu().matmul(y).softmax(); }},
      {"attention",
       [](T x, T y) {
         return x.reshape({1, 6, 4}).scaled_dot_product_attention(
             x.reshape({1, 6, 4}), y.reshape({1, 6, 4}), {}, {.is_causal = true});
       }},
      {"conv", [](T x, T) { return x.reshape({6, 1, 4}).conv2d(Tensor{{{1.0, 2.0}}}).square(); }},
      {"conv_image",
       [](T x, T) {
         return x.reshape({1, 1, 6, 4}).conv2d(Tensor::ones({2, 1, 3, 3}), {}, {.padding = 1});
       }},
      {"max_pool", [](T x, T) { return x.reshape({1, 1, 6, 4}).max_pool2d(); }},
      {"sort", [](T x, T) { return x.sort(0).first; }},
      {"topk", [](T x, T) { return x.topk(2).first; }},
      {"cumsum", [](T x, T) { return x.cumsum(0) + x.cumsum(1); }},
      {"scatter",
       [](T x, T y) { return x.scatter_reduce(0, Tensor{{0, 1, 5, 2}}, y, ScatterReduce::Sum); }},
      {"triu", [](T x, T) { return x.triu(); }},
      {"cross_entropy",
       [](T x, T) { return x.sparse_categorical_crossentropy(Tensor{0, 3, 1, 2, 2, 0}); }},
      {"contiguous", [](T x, T) { return (x + 1).contiguous() * 2; }},
      {"clone", [](T x, T) { return (x + 1).clone() * 2; }},
      {"gradient_std", [](T x, T) { return x.std().gradient({x})[0]; }},
      {"gradient_pool",
       [](T x, T) { return x.reshape({1, 1, 6, 4}).max_pool2d().square().sum().gradient({x})[0]; }},
      {"gradient_conv",
       [](T x, T) {
         return x.reshape({6, 1, 4}).conv2d(Tensor{{{1.0, 2.0}}}).square().sum().gradient({x})[0];
       }},
      {"gradient_matmul",
       [](T x, T y) { return x.matmul(y.T()).square().mean().gradient({x})[0]; }},
      {"gradient_weight",
       [](T x, T y) { return x.matmul(y.T()).square().mean().gradient({y})[0]; }},
      {"gradient_embedding",
       [](T x, T) { return x.embedding(Tensor{5, 1, 1}).square().sum().gradient({x})[0]; }},
      {"gradient_cross_entropy",
       [](T x, T) {
         return x.sparse_categorical_crossentropy(Tensor{0, 3, 1, 2, 2, 0}).gradient({x})[0];
       }},
  };
  return table;
}

TEST(Meshes, ShareConstantsInOneRun) {
  TINYSHARD_NEED_DEVICES(3);
  Tensor table = (Tensor::arange(6).to_float() * 2 + 1).cumsum().contiguous();
  Tensor on_two = Tensor::ones({6}).shard(device_names(2), 0).realize();
  Tensor on_three = Tensor::ones({6}).shard(device_names(3), 0).realize();
  Tensor a = on_two + table, b = on_three * table, c = table + 1;
  Tensor::realize({a, b, c});
  EXPECT_EQ(a.to_vector<int>(), (std::vector<int>{2, 5, 10, 17, 26, 37}));
  EXPECT_EQ(b.to_vector<int>(), (std::vector<int>{1, 4, 9, 16, 25, 36}));
  EXPECT_EQ(c.to_vector<int>(), (std::vector<int>{2, 5, 10, 17, 26, 37}));
}

// Maxima and minima of parts, and sums of 16-bit integers, travel in a form of their own
// (multi/wire.h): what is hard in it comes back to the bit.
// Values whose parts are equal on each device, but which are not of one shape or placement.
TEST(Meshes, KeepShapesOfResultsWithEqualParts) {
  TINYSHARD_NEED_DEVICES(3);
  Mesh mesh({{"a", 3}}, {{device_kind(), DeviceRef::kHere, 0},
                         {device_kind(), DeviceRef::kHere, 1},
                         {device_kind(), DeviceRef::kHere, 2}});
  const std::vector<AxisPlacement> split = {{"a", Shard(0)}};
  auto made = [&] {
    return std::vector<Tensor>{Tensor::ones({6}).shard(mesh, split).contiguous(),
                               Tensor::ones({2}).shard(mesh).contiguous(),
                               Tensor::ones({5}).shard(mesh, split).contiguous(),
                               Tensor::ones({6}).shard(mesh, split).contiguous()};
  };
  std::vector<Tensor> all = made();
  Tensor::realize(all);
  Jit step = made;
  for (int call = 0; call < 3; ++call) {
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t size = std::vector<int64_t>{6, 2, 5, 6}[i];
      EXPECT_EQ(all[i].shape(), Dims{size}) << i;
      EXPECT_EQ(all[i].to_vector<float>(), std::vector<float>(size_t(size), 1)) << i;
    }
    all = step();
  }
  Tensor none = Tensor::zeros({0, 5}).shard(mesh, {{"a", Shard(1)}}).clone().realize();
  std::vector<Tensor> empty = {none.matmul(Tensor::ones({5, 2})), none.flip(0)};
  Tensor::realize(empty);
  EXPECT_EQ(empty[0].shape(), (Dims{0, 2}));
  EXPECT_EQ(empty[1].shape(), (Dims{0, 5}));
}

TEST(Reductions, KeepWhatIsHardOverDevices) {
  TINYSHARD_NEED_DEVICES(2);
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<float, float>> pairs = {
      {1, kNan},    {kNan, 1},     {-kNan, 1},    {kInf, kNan}, {kNan, -kInf}, {kNan, kNan},
      {kInf, 1},    {-kInf, -1},   {-kInf, kInf}, {-2, -3},     {-2, 3},       {2, -3},
      {2, 3},       {0, -1},       {0, 1},        {-0.5f, 0},   {6e-8f, 0},    {-6e-8f, -1.2e-7f},
      {65504, 1e4}, {-65504, -1e4}};
  std::vector<float> values;
  for (auto [a, b] : pairs) values.push_back(a);
  for (auto [a, b] : pairs) values.push_back(b);
  const int64_t columns = int64_t(pairs.size());
  for (DType type : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    Tensor x = Tensor(values, {2, columns}).cast(type).realize();
    Tensor divided = x.shard(device_names(2), 0).realize();
    for (bool largest : {true, false}) {
      auto call = [&](const Tensor& t) { return largest ? t.max(0) : t.min(0); };
      std::vector<double> got = call(divided).to_vector<double>(),
                          want = call(x).to_vector<double>();
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(std::isnan(got[i]), std::isnan(pairs[i].first) || std::isnan(pairs[i].second));
        if (std::isnan(want[i])) continue;
        EXPECT_EQ(got[i], want[i]) << name(type) << " of pair " << i;
      }
    }
  }
  for (DType type : {DType::I16, DType::U16}) {
    Tensor x = Tensor(std::vector<int>{30000, -2, 7, 30000, -5, 300}, {2, 3}).cast(type).realize();
    Tensor divided = x.shard(device_names(2), 0).realize();
    for (auto* call :
         {+[](const Tensor& t) { return t.sum(0, false, t.dtype()); },
          +[](const Tensor& t) { return t.prod(0); }, +[](const Tensor& t) { return t.max(0); },
          +[](const Tensor& t) { return t.min(0); }})
      EXPECT_EQ(call(divided).to_vector<int64_t>(), call(x).to_vector<int64_t>()) << name(type);
  }
}

class Divided : public ::testing::TestWithParam<std::tuple<size_t, int, int>> {};

TEST_P(Divided, IsTheSame) {
  auto [index, devices, dim] = GetParam();
  const Row& row = rows()[index];
  TINYSHARD_NEED_DEVICES(devices);
  std::vector<std::string> names = device_names(devices);
  std::vector<float> data, more;
  for (int i = 0; i < 24; ++i)
    data.push_back(static_cast<float>(i % 7) + 2), more.push_back(static_cast<float>(i % 5) - 1.5f);
  Tensor x(data, {6, 4}), y(more, {6, 4});
  Tensor expected = row.call(x, y), got = row.call(x.shard(names, dim), y);
  ASSERT_EQ(got.shape(), expected.shape());
  ASSERT_EQ(got.dtype(), expected.dtype());
  std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-5 + 1e-4 * std::abs(b[i])) << "element " << i;
}

std::string name(const ::testing::TestParamInfo<Divided::ParamType>& info) {
  auto [index, devices, dim] = info.param;
  return std::string(rows()[index].name) + "_" + std::to_string(devices) +
         (dim ? "_by_columns" : "_by_rows");
}

INSTANTIATE_TEST_SUITE_P(Values, Divided,
                         ::testing::Combine(::testing::Range(size_t{0}, rows().size()),
                                            ::testing::Values(2, 3, 4, 5), ::testing::Values(0, 1)),
                         name);

// 70000 has no f16, but 0 times it has.
TEST(Reductions, OfSixteenBitsRoundTheirResultAlone) {
  TINYSHARD_NEED_DEVICES(2);
  const Mesh mesh({{"data", 2}},
                  {{device_kind(), DeviceRef::kHere, 0}, {device_kind(), DeviceRef::kHere, 1}});
  const Tensor x = Tensor({250, 280, 0, 1}).shard(mesh, {{"data", Shard(0)}});
  EXPECT_EQ(x.prod({}, false, DType::F16).item<float>(), 0);
  const Tensor y = Tensor({60000.0, 60000.0, -60000.0, -1.0}).shard(mesh, {{"data", Shard(0)}});
  EXPECT_EQ(y.sum({}, false, DType::F16).item<float>(), 60000);  // the f16 next to 59999
}

// A dim of size 1 that is split over an axis of one device moves nowhere, and ends.
TEST(Reshapes, OfOneElementOverOneDevice) {
  const Mesh mesh({{"data", 1}}, {{device_kind(), DeviceRef::kHere, 0}});
  for (int dim : {0, 1, 2}) {
    const Tensor x =
        Tensor::ones({1, 1, 1}).contiguous().shard(mesh, {{"data", Shard(dim)}}).realize() + 1;
    for (int axis : {0, 1, 2, 3})
      EXPECT_EQ(x.unsqueeze(axis).to_vector<float>(), (std::vector<float>{2}));
    EXPECT_EQ(stack({x, x}, -2).to_vector<float>(), (std::vector<float>{2, 2}));
    EXPECT_EQ(x.reshape({1}).to_vector<float>(), (std::vector<float>{2}));
  }
}

}  // namespace
}  // namespace tinyshard::sharding_test
