// Slices, pads, flips, rolls and concatenations along a split dim: values as on one device, the
// result split again, gradients too.
#include <cmath>
#include <functional>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multi/one_device.h"

namespace tinyshard::windows_test {
namespace {

struct Movement {
  std::string name;
  std::function<Tensor(const Tensor&)> run;  // of [n, 6], n >= 9
};

std::vector<Movement> movements() {
  using T = const Tensor&;
  return {
      {"first rows", [](T x) { return x.shrink({{0, 5}, {0, 6}}); }},
      {"inner rows", [](T x) { return x.shrink({{2, x.shape()[0] - 1}, {1, 5}}); }},
      {"last rows", [](T x) { return x.shrink({{x.shape()[0] - 4, x.shape()[0]}, {0, 6}}); }},
      {"one row", [](T x) { return x.shrink({{4, 5}, {0, 6}}).reshape({6}); }},
      {"two rows", [](T x) { return x.shrink({{2, 4}, {0, 6}}); }},
      {"no row", [](T x) { return x.shrink({{2, 2}, {0, 6}}).pad({{1, 3}, {0, 0}}); }},
      {"index", [](T x) { return x[-1]; }},
      {"chunks", [](T x) { return x.chunk(3, 0)[1] * 2; }},
      {"pad below", [](T x) { return x.pad({{3, 0}, {0, 0}}); }},
      {"pad above", [](T x) { return x.pad({{0, 7}, {0, 1}}); }},
      {"pad to twice", [](T x) { return x.pad({{x.shape()[0], 0}, {0, 0}}); }},
      {"pad far", [](T x) { return x.pad({{31, 5}, {0, 0}}); }},
      {"pad with ones", [](T x) { return x.pad({{2, 2}, {2, 2}}, 1.0); }},
      {"pad and cut", [](T x) { return x.pad({{2, 2}, {0, 0}}).shrink({{1, 9}, {0, 6}}); }},
      {"sum of first rows", [](T x) { return x.shrink({{0, 5}, {0, 6}}).sum(0); }},
      {"sum of inner rows", [](T x) { return x.shrink({{2, 8}, {1, 5}}).sum(0); }},
      {"sum of a row", [](T x) { return x.shrink({{4, 5}, {0, 6}}).sum(0); }},
      {"sum of no row", [](T x) { return x.shrink({{2, 2}, {0, 6}}).sum(0); }},
      {"sum of all of last rows",
       [](T x) { return x.shrink({{3, 9}, {0, 6}}).shrink({{1, 5}, {0, 6}}).sum(); }},
      {"sums of first rows", [](T x) { return x.shrink({{0, 5}, {0, 6}}).sum(1); }},
      {"largest of first rows", [](T x) { return (x.shrink({{1, 7}, {0, 6}})).max(0); }},
      {"smallest of last rows", [](T x) { return x.shrink({{3, 9}, {2, 6}}).min(0); }},
      {"rows and their sum",
       [](T x) {
         Tensor part = x.shrink({{0, 6}, {0, 6}});
         return part + part.sum(0);
       }},
      {"flip", [](T x) { return x.flip({0}); }},
      {"flip both", [](T x) { return x.flip({0, 1}) + x; }},
      {"roll by one", [](T x) { return x.roll(1, 0); }},
      {"roll by many", [](T x) { return x.roll(-5, 0) * x; }},
      {"roll all", [](T x) { return x.roll(7); }},
      {"cat", [](T x) { return x.cat({x * 3, x.shrink({{0, 2}, {0, 6}})}, 0); }},
      {"repeat", [](T x) { return x.repeat({3, 2}); }},
      {"diagonal", [](T x) { return x.diagonal(); }},
      {"every second", [](T x) { return x[{Slice{1, std::nullopt, 2}}]; }},
      {"reflect", [](T x) { return x.pad({{3, 2}, {0, 0}}, 0.0, PadMode::Reflect); }},
      {"computed", [](T x) { return (x.sin() + 1).pad({{1, 1}, {0, 0}}).exp(); }},
      {"flat", [](T x) { return x.reshape({x.numel()}) * 2; }},
      {"flat and back", [](T x) { return (x.reshape({-1}) * 2).reshape({2, 3, -1}) + 1; }},
      {"flat from inside", [](T x) { return x.T().reshape({-1}) * 2; }},
      {"halves", [](T x) { return (x.T().unsqueeze(0).expand({2, 6, -1}) + 1).reshape({4, -1}); }},
      {"other rows", [](T x) { return x.reshape({3, -1}) * 2; }},
      {"other columns", [](T x) { return x.reshape({-1, 3}) * 2; }},
      {"inner to outer",
       [](T x) { return x.reshape({2, 3, -1}).permute({2, 0, 1}).reshape({-1, 2}); }},
      {"unfold", [](T x) { return x.unfold(0, 3, 1).sum(2); }},
  };
}

struct Layout {
  std::string name;
  std::vector<MeshAxis> axes;
  std::vector<AxisPlacement> place;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (int64_t n : {1, 2, 3, 4})
    all.push_back({fmt::format("rows_on_{}", n), {{"d", n}}, {{"d", Shard(0)}}});
  all.push_back({"columns_on_4", {{"d", 4}}, {{"d", Shard(1)}}});
  const std::vector<MeshAxis> grid{{"r", 2}, {"c", 2}};
  all.push_back({"grid", grid, {{"r", Shard(0)}, {"c", Shard(1)}}});
  all.push_back({"grid_rows", grid, {{"r", Shard(0)}, {"c", Shard(0)}}});
  all.push_back({"grid_inner", grid, {{"c", Shard(0)}}});
  return all;
}

using Windows = OnDevices<4, testing::TestWithParam<Layout>>;

// Rows of different values, none of them 0.
Tensor rows(int64_t n, DType type) {
  return ((Tensor::arange(n * 6).reshape({n, 6}) * 7) % 97 + 1).cast(type);
}

TEST_P(Windows, HaveTheValuesOfOneDevice) {
  const Mesh mesh(GetParam().axes);
  for (int64_t n : {9, 16, 23}) {
    const Tensor x = rows(n, DType::F32).realize();
    const Tensor split = x.shard(mesh, GetParam().place).realize();
    for (const Movement& m : movements()) {
      const Tensor want = m.run(x), got = m.run(split);
      ASSERT_EQ(got.shape(), want.shape()) << m.name;
      EXPECT_EQ(got.to_vector<float>(), want.to_vector<float>()) << m.name << " of " << n;
    }
  }
}

TEST_P(Windows, HaveTheGradientsOfOneDevice) {
  const Mesh mesh(GetParam().axes);
  for (int64_t n : {9, 16}) {
    const Tensor x = (rows(n, DType::F64) / 64).realize();
    const Tensor split = x.shard(mesh, GetParam().place).realize();
    for (const Movement& m : movements()) {
      auto gradient = [&](const Tensor& of) {
        const Tensor y = m.run(of);
        const Tensor weights = Tensor::arange(y.numel()).reshape(y.shape()).cast(DType::F64) + 1;
        return (y * y * weights).sum().gradient({of})[0].to_vector<double>();
      };
      const auto want = gradient(x), got = gradient(split);
      ASSERT_EQ(got.size(), want.size()) << m.name;
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-9 * (1 + std::abs(want[i]))) << m.name << " of " << n;
    }
  }
}

TEST_P(Windows, KeepEveryType) {
  const Mesh mesh(GetParam().axes);
  // All types take the same way; each layout shows two of them.
  static constexpr DType kTypes[] = {DType::Bool, DType::BF16, DType::U8,
                                     DType::F16,  DType::I16,  DType::I64};
  const size_t first = GetParam().name.size() % 3 * 2;
  for (DType type : {kTypes[first], kTypes[first + 1]}) {
    const Tensor x = rows(11, type).realize(), split = x.shard(mesh, GetParam().place).realize();
    for (const Movement& m : movements()) {
      if (m.name == "computed") continue;  // has the type's own rounding
      EXPECT_EQ(m.run(split).cast(DType::F32).to_vector<float>(),
                m.run(x).cast(DType::F32).to_vector<float>())
          << m.name << " of " << name(type);
    }
  }
}

// Rows of four whose lanes lie in twice as many elements: flags for 128 of them.
using Tiles = OnDevices<4, testing::Test>;
TEST_F(Tiles, OfACatAreReadThroughFlagsOfMoreThanARegister) {
  const Mesh mesh({{"r", 2}, {"c", 2}});
  const Tensor wide =
                   rows(11, DType::I32).reshape({-1}).shrink({{0, 64}}).reshape({8, 8}).realize(),
               narrow = (wide * 3).cast(DType::U16).realize();
  const Tensor tiles = narrow.shard(mesh, {{"r", Shard(0)}, {"c", Shard(1)}}).realize(),
               whole = wide.shard(mesh).realize();
  EXPECT_EQ(cat({tiles, tiles, whole, tiles}, 0).to_vector<int32_t>(),
            cat({narrow, narrow, wide, narrow}, 0).to_vector<int32_t>());
}

INSTANTIATE_TEST_SUITE_P(Layouts, Windows, testing::ValuesIn(layouts()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tinyshard::windows_test
