// Convolutions of images that are split in space: values and gradients as on one device, and no
// more bytes than the rows beside each part.
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/multi/bytes.h"

namespace tinyshard::spatial_test {
namespace {

struct Form {
  int64_t kernel, stride, padding, dilation, groups;
};

TEST(Spatial, ConvolutionsHaveTheValuesOfOneDevice) {
  TINYSHARD_NEED_DEVICES(4);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(4), .devices_per_rank = 0});
  const Mesh line({{"d", 4}}), three({{"d", 3}}), grid({{"n", 2}, {"d", 2}});
  for (const Form& f : {Form{3, 1, 1, 1, 1}, Form{3, 1, 0, 1, 2}, Form{1, 1, 0, 1, 1},
                        Form{3, 2, 1, 1, 1}, Form{3, 1, 2, 2, 1}, Form{5, 1, 2, 1, 4},
                        Form{2, 3, 0, 1, 1}, Form{1, 2, 0, 1, 1}, Form{3, 3, 2, 2, 2}}) {
    const Tensor x =
        (Tensor::arange(3 * 4 * 13 * 11).reshape({3, 4, 13, 11}).cast(DType::F64) * 0.37)
            .sin()
            .realize();
    const Tensor w = (Tensor::arange(8 * (4 / f.groups) * f.kernel * f.kernel)
                          .reshape({8, 4 / f.groups, f.kernel, f.kernel})
                          .cast(DType::F64) *
                      0.7)
                         .cos()
                         .realize();
    auto run = [&](const Tensor& image, const Tensor& weights) {
      const Tensor y = image.conv2d(weights, {},
                                    {.groups = f.groups,
                                     .stride = f.stride,
                                     .dilation = f.dilation,
                                     .padding = f.padding,
                                     .dtype = {}});
      const std::vector<Tensor> g = (y * y).sum().gradient({image, weights});
      return std::vector<std::vector<double>>{y.to_vector<double>(), g[0].to_vector<double>(),
                                              g[1].to_vector<double>()};
    };
    const auto want = run(x, w);
    for (const auto& [mesh, place] : std::vector<std::pair<Mesh, std::vector<AxisPlacement>>>{
             {line, {{"d", Shard(2)}}},
             {line, {{"d", Shard(3)}}},
             {three, {{"d", Shard(2)}}},
             {grid, {{"n", Shard(0)}, {"d", Shard(2)}}},
             {grid, {{"d", Shard(3)}}}}) {
      const auto got = run(x.shard(mesh, place).realize(), w.shard(mesh).realize());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].size(), want[i].size());
        for (size_t j = 0; j < want[i].size(); ++j)
          ASSERT_NEAR(got[i][j], want[i][j], 1e-9 * (1 + std::abs(want[i][j])))
              << "kernel " << f.kernel << " stride " << f.stride << " padding " << f.padding
              << " of " << mesh.to_string() << " result " << i;
      }
    }
  }
  Runtime::shutdown();
}

// Which are gradients of convolutions, and the other way round.
TEST(Spatial, TransposedConvolutionsToo) {
  TINYSHARD_NEED_DEVICES(4);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(4), .devices_per_rank = 0});
  const Mesh mesh({{"d", 4}});
  const Tensor x =
      (Tensor::arange(2 * 3 * 9 * 8).reshape({2, 3, 9, 8}).cast(DType::F64) * 0.37).sin().realize();
  for (const Form& f : {Form{3, 2, 1, 1, 1}, Form{2, 2, 0, 1, 1}, Form{2, 3, 0, 1, 1},
                        Form{4, 2, 1, 1, 1}, Form{3, 1, 0, 2, 1}}) {
    const Tensor w = (Tensor::arange(3 * 5 * f.kernel * f.kernel)
                          .reshape({3, 5, f.kernel, f.kernel})
                          .cast(DType::F64) *
                      0.7)
                         .cos()
                         .realize();
    auto run = [&](const Tensor& image, const Tensor& weights) {
      const Tensor y = image.conv_transpose2d(
          weights, {}, {.stride = f.stride, .dilation = f.dilation, .padding = f.padding});
      const std::vector<Tensor> g = (y * y).sum().gradient({image, weights});
      return std::vector<std::vector<double>>{y.to_vector<double>(), g[0].to_vector<double>(),
                                              g[1].to_vector<double>()};
    };
    const auto want = run(x, w);
    for (int dim : {2, 3}) {
      const auto got = run(x.shard(mesh, {{"d", Shard(dim)}}).realize(), w.shard(mesh).realize());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].size(), want[i].size());
        for (size_t j = 0; j < want[i].size(); ++j)
          ASSERT_NEAR(got[i][j], want[i][j], 1e-9 * (1 + std::abs(want[i][j])))
              << "kernel " << f.kernel << " stride " << f.stride << " result " << i;
      }
    }
  }
  Runtime::shutdown();
}

// Larger and smaller images, of sizes that divide and that do not, and pooling whose windows share
// rows or leave some out.
TEST(Spatial, SizesAndPoolsToo) {
  TINYSHARD_NEED_DEVICES(4);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(4), .devices_per_rank = 0});
  const Mesh line({{"d", 4}}), three({{"d", 3}}), grid({{"n", 2}, {"d", 2}});
  using Image = std::function<Tensor(const Tensor&)>;
  std::vector<std::pair<std::string, Image>> images;
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{24, 16}, {6, 4}, {19, 5}, {2, 3}}) {
    for (Interpolation mode :
         {Interpolation::Nearest, Interpolation::NearestExact, Interpolation::Linear}) {
      images.emplace_back("size " + std::to_string(rows) + " x " + std::to_string(columns),
                          [=](const Tensor& x) { return x.interpolate({rows, columns}, mode); });
    }
    images.emplace_back("corners of " + std::to_string(rows), [=](const Tensor& x) {
      return x.interpolate({rows, columns}, Interpolation::Linear, true);
    });
  }
  for (const auto& [kernel, stride, padding] :
       std::vector<std::array<int64_t, 3>>{{3, 2, 1}, {3, 1, 0}, {4, 3, 1}, {2, 3, 0}, {5, 1, 2}}) {
    PoolOptions options;
    options.stride = stride, options.padding = padding;
    images.emplace_back("largest of " + std::to_string(kernel),
                        [=](const Tensor& x) { return x.max_pool2d(kernel, options); });
    images.emplace_back("mean of " + std::to_string(kernel),
                        [=](const Tensor& x) { return x.avg_pool2d(kernel, options); });
  }
  for (const Dims& shape : {Dims{2, 3, 12, 8}, Dims{2, 1, 13, 11}}) {
    const Tensor x =
        (Tensor::arange(product(shape)).reshape(shape).cast(DType::F64) * 0.37).sin().realize();
    for (const auto& [name, image] : images) {
      SCOPED_TRACE(name + " of " + std::to_string(shape[2]));
      auto run = [&image = image](const Tensor& of) {
        const Tensor y = image(of);
        const Tensor weights = (Tensor::arange(y.numel()).reshape(y.shape()) % 7).cast(DType::F64);
        const Tensor g = (y * y * weights).sum().gradient({of})[0];
        return std::vector<std::vector<double>>{y.to_vector<double>(), g.to_vector<double>()};
      };
      const auto want = run(x);
      for (const auto& [mesh, place] : std::vector<std::pair<Mesh, std::vector<AxisPlacement>>>{
               {line, {{"d", Shard(2)}}},
               {line, {{"d", Shard(3)}}},
               {three, {{"d", Shard(2)}}},
               {grid, {{"n", Shard(0)}, {"d", Shard(2)}}},
               {grid, {{"n", Shard(2)}, {"d", Shard(3)}}}}) {
        const auto got = run(x.shard(mesh, place).realize());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_EQ(got[i].size(), want[i].size());
          for (size_t j = 0; j < want[i].size(); ++j)
            ASSERT_NEAR(got[i][j], want[i][j], 1e-9 * (1 + std::abs(want[i][j])))
                << name << " of " << mesh.to_string() << " result " << i << " element " << j;
        }
      }
    }
  }
  Runtime::shutdown();
}

// Sums of small integers are exact in any order and type.
TEST(Spatial, SumsOfWindowsBackToTheBit) {
  TINYSHARD_NEED_DEVICES(4);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(4), .devices_per_rank = 0});
  const Mesh line({{"r", 4}, {"c", 1}}), grid({{"r", 2}, {"c", 2}}), three({{"r", 3}, {"c", 1}});
  using Image = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<std::string, Image>> images{
      {"unfold", [](const Tensor& x) { return x.unfold(3, 3, 1).unfold(2, 3, 1); }},
      {"other order", [](const Tensor& x) { return x.unfold(2, 3, 2).unfold(3, 4, 1); }},
      {"apart", [](const Tensor& x) { return x.unfold(3, 2, 3).unfold(2, 3, 1); }},
      {"three", [](const Tensor& x) { return x.unfold(3, 2, 1).unfold(2, 3, 1).unfold(1, 2, 1); }},
      {"beside",
       [](const Tensor& x) {
         const Tensor y = x.unfold(3, 3, 1);
         return y.unfold(2, 3, 1).sum({4, 5}) +
                y.sum(4).shrink(
                    {{0, x.size(0)}, {0, x.size(1)}, {0, x.size(2) - 2}, {0, x.size(3) - 2}});
       }},
      {"cut",
       [](const Tensor& x) {
         return x.pad({{0, 0}, {0, 0}, {1, 2}, {2, 1}})
             .unfold(3, 3, 1)
             .pad({{0, 0}, {0, 0}, {2, 1}, {0, 0}, {0, 0}})
             .unfold(2, 3, 1);
       }},
      {"largest",
       [](const Tensor& x) { return x.max_pool2d({3, 2}, {.stride = 1, .padding = 1}); }},
      {"largest of steps",
       [](const Tensor& x) { return x.max_pool2d(3, {.stride = 2, .dilation = 2, .padding = 1}); }},
  };
  for (DType type : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    for (const Dims& shape : {Dims{2, 3, 12, 8}, Dims{1, 2, 17, 11}}) {
      // No two neighbours are equal, so that each window has one largest.
      const Tensor x = ((Tensor::arange(product(shape)) * 37) % 101).reshape(shape).cast(type);
      for (const auto& [name, image] : images) {
        auto run = [&image = image](const Tensor& of) {
          const Tensor y = image(of);
          const Tensor g = (Tensor::arange(y.numel()).reshape(y.shape()) % 3).cast(of.dtype());
          return y.gradient({of}, g)[0];
        };
        const std::vector<double> want = run(x).to_vector<double>();
        for (const Mesh& mesh : {line, grid, three}) {
          for (const auto& [rows, columns] :
               std::vector<std::pair<Placement, Placement>>{{Shard(2), Replicate},
                                                            {Shard(2), Shard(3)},
                                                            {Shard(2), Shard(0)},
                                                            {Shard(3), Replicate},
                                                            {Shard(2), Shard(2)},
                                                            {Shard(1), Shard(2)}}) {
            const Tensor there = x.shard(mesh, {{"r", rows}, {"c", columns}}).realize();
            EXPECT_EQ(run(there).to_vector<double>(), want)
                << name << " of " << shape[2] << " rows on " << mesh.to_string() << " "
                << rows.to_string() << " " << columns.to_string();
          }
        }
      }
    }
  }
  Runtime::shutdown();
}

class SpatialBytes : public test::Planned {};

TEST_F(SpatialBytes, AHaloIsTheRowsBesideAPart) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const Tensor x = split({2, 8, 4 * n, 32}, 2), w = split({8, 8, 3, 3}, -1);
    ConvOptions options;
    options.padding = 1;
    const Tensor y = x.conv2d(w, {}, options);
    EXPECT_LE(sent(y), bound(2.0 * 2 * 8 * 32 * 4)) << n;  // a row to each side
    EXPECT_EQ(y.sharding().placements[0], Shard(2));
    EXPECT_EQ(sent(x.conv2d(split({8, 8, 1, 1}, -1))), 0);
    // A gradient that arrives split the same way reads a row of it, and an image that grows one.
    options.stride = 2;
    const Tensor half = x.conv2d(w, {}, options), arrives = split({2, 8, 2 * n, 16}, 2);
    EXPECT_LE(sent(half), bound(2.0 * 8 * 32 * 4)) << n;
    EXPECT_LE(sent(half.gradient({x}, arrives)), bound(2.0 * 8 * 16 * 4)) << n;
    const Tensor grown =
        x.conv_transpose2d(w, {}, {.stride = 2, .padding = 1, .output_padding = 1});
    EXPECT_LE(sent(grown), bound(2.0 * 8 * 32 * 4)) << n;
    EXPECT_EQ(grown.sharding().placements[0], Shard(2));
  }
}

// Windows that overlap read the rows beside their part, and so does what sums them back.
TEST_F(SpatialBytes, PoolingSendsTheRowsThatWindowsShare) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const Tensor x = split({2, 8, 4 * n, 32}, 2);
    const double row = 2.0 * 8 * 32 * 4;
    const Tensor y = x.max_pool2d(3, {.stride = 2, .padding = 1});
    EXPECT_EQ(y.sharding().placements[0], Shard(2));
    EXPECT_LE(sent(y), bound(row)) << n;
    EXPECT_LE(sent(x.avg_pool2d({3, 1}, {.stride = 1})), bound(2 * row)) << n;
    EXPECT_LE(sent(x.unfold(2, 3, 1)), bound(2 * row)) << n;
    // Back: of each row of windows all that it holds.
    EXPECT_LE(sent(x.unfold(2, 3, 1).gradient({x}, split({2, 8, 4 * n - 2, 32, 3}, 2))),
              bound(2 * 3 * row))
        << n;
    // A row of x to find the largest, and one back.
    EXPECT_LE(sent(y.gradient({x}, split({2, 8, 2 * n, 16}, 2))), bound(2 * row)) << n;
  }
}

// Windows of columns are summed before rows travel, so a row is one number for each column.
TEST_F(SpatialBytes, PoolingSendsBackRowsWhoseColumnsAreSummed) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const Tensor x = split({2, 8, 8 * n, 32}, 2);
    const double row = 2.0 * 8 * 32 * 4;
    auto back = [&](const Tensor& y, int dim = 2) {
      const Tensor g = y.gradient({x}, split(y.shape(), dim))[0];
      EXPECT_EQ(g.sharding().placements[0], Shard(2));
      return sent(g);
    };
    const PoolOptions by_one{.stride = 1}, around{.stride = 1, .padding = 1},
        by_two{.stride = 2, .padding = 1};
    EXPECT_LE(back(x.avg_pool2d(3, by_one)), bound(2 * row)) << n;
    EXPECT_LE(back(x.avg_pool2d(3, around)), bound(2 * row)) << n;
    EXPECT_LE(back(x.avg_pool2d(3, by_two)), bound(row)) << n;
    EXPECT_LE(back(x.avg_pool2d({3, 5}, by_one)), bound(2 * row)) << n;
    EXPECT_LE(back(x.avg_pool2d(3, {.stride = 1, .dilation = 2})), bound(4 * row)) << n;
    // On four devices 28 windows are seven for each, and the rows eight.
    EXPECT_LE(back(x.avg_pool2d(5, by_one)), bound(4 * row)) << n;
    EXPECT_LE(back(x.unfold(2, 5, 1).sum(4)), bound(4 * row)) << n;
    EXPECT_LE(back(x.max_pool2d(3, around)), bound(4 * row)) << n;
    EXPECT_EQ(back(x.avg_pool2d({2, 3}, {.stride = {2, 1}})), 0) << n;
    // In either order.
    EXPECT_LE(back(x.unfold(3, 3, 1).unfold(2, 3, 1).sum({4, 5})), bound(2 * row)) << n;
    EXPECT_LE(back(x.unfold(2, 3, 1).unfold(3, 3, 1).sum({4, 5})), bound(2 * row)) << n;
    // Windows of columns apart have fewer numbers than there are columns.
    EXPECT_LE(back(x.unfold(3, 2, 4).unfold(2, 3, 1).sum({4, 5})), bound(2 * row / 2)) << n;
    // The gradient of windows may be a stored value.
    const Tensor w = split({2, 8, 8 * n - 2, 30, 3, 3}, 2);
    EXPECT_LE(sent((x.unfold(3, 3, 1).unfold(2, 3, 1) * w).sum().gradient({x})), bound(2 * row));
    // Images of three dims.
    const Tensor v = split({2, 8 * n, 8, 8}, 1), y = v.avg_pool2d({3, 3, 3}, by_one);
    EXPECT_LE(sent(y.gradient({v}, split(y.shape(), 1))), bound(2 * 2.0 * 8 * 8 * 4)) << n;
  }
}

// Where neither rows nor windows divide, parts of both begin at different rows.
TEST_F(SpatialBytes, PoolingOfUnevenPartsSendsBackAsMuchAsForward) {
  for (int n : {4, 8}) {
    devices(n);
    for (int64_t rows : {8 * n + 3, 4 * n + 1, 16 * n - 5}) {
      const Tensor x = split({2, 8, rows, 32}, 2);
      for (int64_t kernel : {3, 5}) {
        for (int64_t stride : {1, 2}) {
          for (int64_t padding : {0, 1}) {
            const Tensor y = x.avg_pool2d(kernel, {.stride = stride, .padding = padding});
            const Tensor most = x.max_pool2d(kernel, {.stride = stride, .padding = padding});
            const Tensor arrives = split(y.shape(), 2);
            const double forward = double(sent(y));
            EXPECT_LE(sent(y.gradient({x}, arrives)), bound(forward))
                << n << " " << rows << " " << kernel << " " << stride << " " << padding;
            EXPECT_LE(sent(most.gradient({x}, arrives)), bound(2 * forward))
                << n << " " << rows << " " << kernel << " " << stride << " " << padding;
          }
        }
      }
    }
  }
}

// On a mesh of two axes one divides rows, and the other one columns.
TEST_F(SpatialBytes, PoolingOnAGridSendsBackBothSidesOfAPart) {
  for (int n : {2, 4}) {
    devices(n, 4);
    const Tensor x = stored({2, 8, 16 * n, 64}, {Shard(2), Shard(3)});
    const double row = 2.0 * 8 * 18 * 4, column = 2.0 * 8 * 16 * 4;
    auto back = [&](const Tensor& y) {
      return sent(y.gradient({x}, stored(y.shape(), {Shard(2), Shard(3)})));
    };
    EXPECT_LE(back(x.avg_pool2d(3, {.stride = 1, .padding = 1})), bound(2 * row + 2 * column));
    EXPECT_LE(back(x.avg_pool2d(3, {.stride = 2, .padding = 1})), bound(row + column));
    const Tensor whole = stored({2, 8, 16 * n, 64}, {Shard(2), Replicate});
    EXPECT_LE(sent(whole.avg_pool2d(3, {.stride = 1, .padding = 1})
                       .gradient({whole}, stored({2, 8, 16 * n, 64}, {Shard(2), Replicate}))),
              bound(2 * 2.0 * 8 * 64 * 4));
  }
}

// Rows that windows of two devices share have a term of the gradient on each, and one of them travels.
TEST_F(SpatialBytes, PoolingSendsBackTheRowsThatItReceived) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const Tensor x = split({2, 8, 8 * n, 8 * n}, 3);
    const double column = 2.0 * 8 * 8 * n * 4;
    auto back = [&](const Tensor& y) { return y.gradient({x}, split(y.shape(), 3)); };
    EXPECT_LE(sent(back(x.avg_pool2d(3, {.stride = 1, .padding = 1}))), bound(2 * column)) << n;
    EXPECT_LE(sent(back(x.avg_pool2d(3, {.stride = 1}))), bound(2 * column)) << n;
    EXPECT_LE(sent(back(x.avg_pool2d(3, {.stride = 2, .padding = 1}))), bound(column)) << n;
    // A column forward, to find the largest, and one back.
    EXPECT_LE(sent(back(x.max_pool2d(3, {.stride = 2, .padding = 1}))), bound(2 * column)) << n;
    EXPECT_EQ(sent(back(x.max_pool2d(2))), 0) << n;
    EXPECT_LE(sent(x.unfold(3, 3, 1).gradient({x}, split({2, 8, 8 * n, 8 * n - 2, 3}, 3))),
              bound(2 * column));
  }
}

// Images that are made larger read a row beside their part. Images that are made smaller by a whole
// factor read none.
TEST_F(SpatialBytes, ImagesOfOtherSizesReadTheRowsBesideTheirParts) {
  for (int n : {4, 8, 64}) {
    devices(n);
    for (int dim : {2, 3}) {
      const int64_t size = 4 * n;
      const Tensor x = split({2, 8, size, size}, dim);
      auto moved = [&](int64_t to, Interpolation mode) {
        const Tensor y = x.interpolate({to, to}, mode);
        EXPECT_EQ(y.sharding().placements[0], Shard(dim));
        return std::pair{sent(y), sent(y.gradient({x}, split(y.shape(), dim)))};
      };
      // The other dim may be made larger before rows travel.
      const double row = 2.0 * 8 * double(size) * 4 * (dim == 3 ? 2 : 1);
      const auto [larger, larger_back] = moved(2 * size, Interpolation::Linear);
      EXPECT_LE(larger, bound(2 * row)) << n << " " << dim;
      EXPECT_LE(larger_back, bound(2 * row)) << n << " " << dim;
      for (Interpolation mode : {Interpolation::Nearest, Interpolation::NearestExact}) {
        EXPECT_EQ(moved(2 * size, mode), std::pair(int64_t{0}, int64_t{0}));
        EXPECT_EQ(moved(size / 2, mode), std::pair(int64_t{0}, int64_t{0}));
      }
      EXPECT_EQ(moved(size / 2, Interpolation::Linear), std::pair(int64_t{0}, int64_t{0}));
    }
  }
}

}  // namespace
}  // namespace tinyshard::spatial_test
