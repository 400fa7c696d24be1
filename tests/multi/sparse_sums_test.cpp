// Gradients of embeddings on a mesh: what travels, and that it is the same sum.
#include <cmath>
#include <map>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/exec/context.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "tests/devices.h"

namespace tinyshard::sparse_sums_test {
namespace {

class SparseSums : public ::testing::Test {
 protected:
  void use(int devices) {
    Runtime::shutdown();
    Runtime::configure({.devices = device_names(devices), .devices_per_rank = 0});
  }
  void TearDown() override { Runtime::shutdown(); }

  static constexpr int64_t kRows = 200, kWidth = 6;

  static std::vector<int32_t> places(int64_t count) {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(int32_t(i * i * 7 % kRows));
    return all;
  }
  static std::vector<float> numbers(int64_t count) {
    std::vector<float> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(float(std::sin(0.37 * double(i))));
    return all;
  }
  static Tensor table() { return Tensor(numbers(kRows * kWidth)).reshape({kRows, kWidth}); }
  static Tensor index(int64_t count) { return Tensor(places(count)); }

  // The gradient of sum(found^2 * numbers), with `tied` of sum((found @ table^T)^2) too, by table.
  static Tensor gradient(const Tensor& table, const Tensor& index, DType dtype, bool tied) {
    const int64_t count = index.shape()[0];
    Tensor found = table.embedding(index).cast(dtype).cast(DType::F32);
    Tensor factors = Tensor(numbers(count * kWidth)).reshape({count, kWidth});
    Tensor loss = (found.square() * factors).sum();
    if (tied) loss = loss + found.matmul(table.transpose(0, 1)).square().sum();
    return loss.gradient({table})[0];
  }

  // The same, by its formula.
  static std::vector<double> expected(int64_t count, bool tied) {
    const std::vector<int32_t> at = places(count);
    const std::vector<float> table = numbers(kRows * kWidth), factors = numbers(count * kWidth);
    auto cell = [&](int64_t row, int64_t column) {
      return double(table[size_t(row * kWidth + column)]);
    };
    std::vector<double> sums(table.size());
    auto add = [&](int64_t row, int64_t column, double x) {
      sums[size_t(row * kWidth + column)] += x;
    };
    for (int64_t i = 0; i < count; ++i) {
      const int64_t mine = at[size_t(i)];
      for (int64_t c = 0; c < kWidth; ++c)
        add(mine, c, 2 * cell(mine, c) * factors[size_t(i * kWidth + c)]);
      for (int64_t row = 0; tied && row < kRows; ++row) {
        double score = 0;
        for (int64_t c = 0; c < kWidth; ++c) score += cell(mine, c) * cell(row, c);
        for (int64_t c = 0; c < kWidth; ++c) {
          add(mine, c, 2 * score * cell(row, c));
          add(row, c, 2 * score * cell(mine, c));
        }
      }
    }
    return sums;
  }
};

TEST_F(SparseSums, GatherTokensWhereTheyAreFew) {
  TINYSHARD_NEED_DEVICES(2);
  use(2);
  Mesh mesh = Mesh::world({{"data", -1}});
  auto sent = [&](int64_t count, DType dtype, bool tied) {
    Tensor whole = table().shard(mesh, {}).realize();
    Tensor part = index(count).shard(mesh, {{"data", Shard(0)}}).realize();
    std::vector<UOp> roots{gradient(whole, part, dtype, tied).uop()};
    return summarize(make_plan(roots)).collective_kinds;
  };
  using Bytes = std::map<std::string, int64_t>;
  constexpr int64_t kTable = kRows * kWidth * 4;
  // Eight indices of a device and its rows, in the type that they were computed in.
  EXPECT_EQ(sent(16, DType::F32, false), (Bytes{{"all_gather over data", 8 * (4 + kWidth * 4)}}));
  EXPECT_EQ(sent(16, DType::BF16, false), (Bytes{{"all_gather over data", 8 * (4 + kWidth * 2)}}));
  EXPECT_EQ(sent(150, DType::F32, false), (Bytes{{"all_reduce over data", kTable}}))
      << "more than half of the table";
  EXPECT_EQ(sent(16, DType::F32, true), (Bytes{{"all_reduce over data", kTable}}))
      << "the other term moves as much";
}

TEST_F(SparseSums, AreTheSameOnAnyNumberOfDevices) {
  for (int devices : {1, 2, 3, 4}) {
    if (device_count() < devices) continue;
    use(devices);
    Mesh mesh = Mesh::world({{"data", -1}});
    for (DType dtype : {DType::F32, DType::BF16}) {
      const double tolerance = dtype == DType::BF16 ? 1e-2 : 1e-6;  // of the largest
      for (bool tied : {false, true}) {
        for (int64_t count : {16, 13}) {  // 13: uneven parts
          Tensor whole = table().shard(mesh, {}).realize();
          Tensor part = index(count).shard(mesh, {{"data", Shard(0)}}).realize();
          const std::vector<double> want = expected(count, tied),
                                    got = gradient(whole, part, dtype, tied).to_vector<double>();
          ASSERT_EQ(got.size(), want.size());
          double largest = 0;
          for (double x : want) largest = std::max(largest, std::abs(x));
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(got[i], want[i], tolerance * largest)
                << devices << " devices, " << count << " tokens, " << name(dtype)
                << (tied ? ", tied" : "") << ", element " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard::sparse_sums_test
