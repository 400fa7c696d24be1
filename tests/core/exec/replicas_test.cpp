// The comparison of what several devices of one process hold; across ranks: see
// tests/fault/transport/path_test.cpp.
#include "core/exec/replicas.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"

namespace tinyshard::replicas_test {
namespace {

class ReplicasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  }
  void TearDown() override { Runtime::shutdown(); }

  // Fills each device's part with what it returns for (device, element of the part).
  static std::shared_ptr<Storage> stored(Dims shape, const Sharding& where,
                                         const std::function<float(int, int64_t)>& value) {
    auto storage = std::make_shared<Storage>(std::move(shape), DType::F32, where);
    for (size_t d = 0; d < storage->devices().size(); ++d) {
      std::vector<float> part(storage->local_bytes() / sizeof(float));
      for (size_t i = 0; i < part.size(); ++i) part[i] = value(int(d), int64_t(i));
      storage->devices()[d]->copy_in(storage->memory()[d], part.data(), storage->local_bytes());
    }
    return storage;
  }

  static std::string difference(const std::vector<std::shared_ptr<Storage>>& values) {
    try {
      check_replicas(values);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(ReplicasTest, TheOddOneOfManyIsNamedWithItsFirstElements) {
  const Mesh mesh({{"data", 4}});
  const auto right = [](int, int64_t i) { return float(i); };
  const auto whole = stored({3}, replicated(mesh), right);
  EXPECT_EQ(difference({whole}), "");
  // Any element of a value of many pieces is found.
  for (int64_t wrong : {0, 1, 4095, 4096, 70000, 99999}) {
    const auto value = stored({100, 1000}, replicated(mesh), [&](int device, int64_t i) {
      return device == 2 && i == wrong ? -1.0f : float(i % 1000);
    });
    const std::string text = difference({whole, value});
    EXPECT_NE(text.find("value 2 of 2 that the run wrote, f32[100, 1000] on "), std::string::npos)
        << text;
    EXPECT_NE(text.find("is another value on CPU:2 than on CPU:0, CPU:1, CPU:3: from element [" +
                        std::to_string(wrong / 1000) + ", " + std::to_string(wrong % 1000) +
                        "] on CPU:2 has -1"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("CPU:0 has " + std::to_string(wrong % 1000)), std::string::npos) << text;
  }
}

TEST_F(ReplicasTest, BitsCount) {
  const Mesh mesh({{"data", 2}});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(difference({stored({2}, replicated(mesh), [&](int, int64_t) { return nan; })}), "");
  const auto zeros = stored({2}, replicated(mesh),
                            [](int device, int64_t i) { return device && i ? -0.0f : 0.0f; });
  EXPECT_NE(difference({zeros}).find("from element [1] on CPU:1 has -0, CPU:0 has 0"),
            std::string::npos);
}

// Only devices that hold the same part are compared, and only what counts of it.
TEST_F(ReplicasTest, PartsAreComparedAlongTheOtherAxes) {
  const Mesh mesh({{"rows", 2}, {"copies", 2}});
  const Sharding split{mesh, {Shard(0), Replicate}};
  // Devices 0 and 1 hold rows 0 to 2 of 5, devices 2 and 3 the others and a row of padding.
  const auto value = [](int device, int64_t i) {
    const bool padding = device >= 2 && i >= 2 * 3;
    const int part = device / 2;
    return padding ? float(100 + device) : float(10 * part + i);
  };
  EXPECT_EQ(difference({stored({5, 3}, split, value)}), "");
  const auto wrong = stored({5, 3}, split, [&](int device, int64_t i) {
    return device == 3 && i == 4 ? 0.5f : value(device, i);
  });
  const std::string text = difference({wrong});
  EXPECT_NE(text.find("is another value on CPU:3 than on CPU:2: from element [4, 1] on CPU:3 has "
                      "0.5, 15, CPU:2 has 14, 15"),
            std::string::npos)
      << text;
  // The last dim is the padded one.
  const Sharding columns{mesh, {Shard(1), Replicate}};
  const auto cut = [](int device, int64_t i) {
    const int part = device / 2;
    return i % 3 == 2 && device >= 2 ? float(device) : float(10 * part + i);
  };
  EXPECT_EQ(difference({stored({4, 5}, columns, cut)}), "");
  EXPECT_NE(difference({stored({4, 5}, columns,
                               [&](int device, int64_t i) {
                                 return device == 3 && i == 7 ? 0.5f : cut(device, i);
                               })})
                .find("from element [2, 4] on CPU:3 has 0.5"),
            std::string::npos);
  // A value that is split along all axes has no replicas, one that holds terms of a sum neither.
  EXPECT_EQ(difference({stored({4}, {mesh, {Shard(0), Shard(0)}},
                               [](int device, int64_t) { return float(device); }),
                        stored({4}, {mesh, {Partial(), Partial()}},
                               [](int device, int64_t) { return float(device); })}),
            "");
}

// Two axes split one dim unevenly: of 5 rows the devices hold [0, 2), [2, 3), [3, 5) and none, each
// twice and in memory for 2, so that the second part is padded although it does not end the whole.
TEST_F(ReplicasTest, AxesThatSplitOneDimUnevenlyNest) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 8});
  const Mesh mesh({{"outer", 2}, {"inner", 2}, {"copies", 2}});
  const Sharding split{mesh, {Shard(0), Shard(0), Replicate}};
  const std::vector<int64_t> rows{2, 1, 2, 0};
  const auto value = [&](int device, int64_t i) {
    const int part = device / 2;
    const bool padding = i >= 3 * rows[size_t(part)];
    return padding ? float(100 + device) : float(10 * part + i);
  };
  EXPECT_EQ(difference({stored({5, 3}, split, value)}), "");
  // Each element of each part counts.
  const auto text_of = [&](int odd, int64_t at) {
    return difference({stored({5, 3}, split, [&](int device, int64_t i) {
      return device == odd && i == at ? 0.5f : value(device, i);
    })});
  };
  EXPECT_NE(text_of(3, 2).find("on CPU:3 than on CPU:2: from element [2, 2] on CPU:3 has 0.5"),
            std::string::npos)
      << text_of(3, 2);
  EXPECT_NE(text_of(5, 4).find("on CPU:5 than on CPU:4: from element [4, 1] on CPU:5 has 0.5"),
            std::string::npos)
      << text_of(5, 4);
}

}  // namespace
}  // namespace tinyshard::replicas_test
