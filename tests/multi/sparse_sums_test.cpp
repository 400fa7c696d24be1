// Gradients of embeddings on a mesh: what travels, and that it is the same sum.
#include <map>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/exec/explain.h"
#include "core/exec/pipeline.h"
#include "core/exec/runtime.h"
#include "tests/devices.h"

namespace tinyshard {
namespace {

class SparseSums : public ::testing::Test {
 protected:
  void use(int devices) {
    Runtime::shutdown();
    Runtime::configure({.devices = device_names(devices), .devices_per_rank = 0});
  }
  void TearDown() override { Runtime::shutdown(); }

  static Tensor tokens(int64_t count, int64_t rows) {
    std::vector<int32_t> places(static_cast<size_t>(count));
    for (size_t i = 0; i < places.size(); ++i) places[i] = int32_t(i * i * 7 % size_t(rows));
    return Tensor(places);
  }
  static Tensor numbers(Dims shape) {
    return (Tensor::arange(double(product(shape))).reshape(shape) * 0.37).sin();
  }

  // The gradient of a table [rows, 6] that `count` tokens look something up in.
  static Tensor gradient(const Tensor& table, const Tensor& index, DType dtype, bool tied) {
    Tensor found = table.cast(dtype).embedding(index);
    Tensor loss = (found.cast(DType::F32) * numbers({index.shape()[0], 6})).sum();
    if (tied) loss = loss + found.cast(DType::F32).matmul(table.transpose(0, 1)).square().sum();
    return loss.gradient({table})[0];
  }

  static std::map<CollectiveOp, int> collectives(const Tensor& x) {
    std::vector<UOp> roots{x.uop()};
    std::map<CollectiveOp, int> found;
    for (const Item& item : make_plan(roots).items) {
      if (item.kind == Item::Kind::Collective) ++found[item.collective.op];
    }
    return found;
  }
};

TEST_F(SparseSums, GatherTokensWhereTheyAreFew) {
  TINYSHARD_NEED_DEVICES(2);
  use(2);
  Mesh mesh = Mesh::world({{"data", -1}});
  auto kinds = [&](int64_t count, bool tied) {
    Tensor table = numbers({200, 6}).shard(mesh, {}).realize();
    Tensor index = tokens(count, 200).shard(mesh, {{"data", Shard(0)}}).realize();
    return collectives(gradient(table, index, DType::F32, tied));
  };
  using Kinds = std::map<CollectiveOp, int>;
  EXPECT_EQ(kinds(16, false), (Kinds{{CollectiveOp::AllGather, 2}}));
  EXPECT_EQ(kinds(150, false), (Kinds{{CollectiveOp::AllReduce, 1}})) << "more bytes than half";
  EXPECT_EQ(kinds(16, true)[CollectiveOp::AllGather], 0) << "the other term moves as much";
}

TEST_F(SparseSums, AreTheSameOnAnyNumberOfDevices) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    for (bool tied : {false, true}) {
      for (int64_t count : {16, 13}) {  // 13: uneven parts
        use(1);
        std::vector<double> want =
            gradient(numbers({200, 6}).realize(), tokens(count, 200), dtype, tied)
                .to_vector<double>();
        for (int devices : {2, 3, 4}) {
          if (device_count() < devices) continue;
          use(devices);
          Mesh mesh = Mesh::world({{"data", -1}});
          Tensor table = numbers({200, 6}).shard(mesh, {}).realize();
          Tensor index = tokens(count, 200).shard(mesh, {{"data", Shard(0)}}).realize();
          std::vector<double> got = gradient(table, index, dtype, tied).to_vector<double>();
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_NEAR(got[i], want[i],
                        (dtype == DType::BF16 ? 2e-2 : 1e-5) * std::max(1.0, std::abs(want[i])))
                << devices << " devices, " << count << " tokens, element " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard
