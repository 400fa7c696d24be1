// Programs on an AMD GPU, or on what stands in for one, against the CPU: sums and exchanges between
// threads, scatters to the bit, recordings with new values, several GPUs. Skipped where there is none.
#include <cmath>
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "devices/hip/hip_device.h"
#include "devices/hip/planned_gpu.h"
#include "tests/devices.h"

namespace tinyshard::hip_device_test {
namespace {

class HipDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (count_hip_devices() == 0) GTEST_SKIP() << describe_hip();
  }
  void TearDown() override { Runtime::shutdown(); }

  static std::vector<float> on(const std::string& device, const std::function<Tensor()>& program) {
    Runtime::shutdown();
    Runtime::configure({.devices = {device}});
    Tensor::manual_seed(3);
    return program().cast(DType::F32).to_vector<float>();
  }
  // Both compute the same values, but for `error` times the largest.
  static void check(double error, const std::function<Tensor()>& program) {
    const std::vector<float> want = on("CPU", program), got = on("HIP", program);
    ASSERT_EQ(got.size(), want.size());
    double largest = 0;
    for (float x : want) largest = std::max(largest, std::abs(double(x)));
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], error * largest) << "element " << i;
  }
};

TEST_F(HipDevice, Sums) {
  check(1e-6, [] { return (Tensor::arange(0, 1000, 1, DType::F32) + Tensor::rand({1000})).sum(); });
  check(1e-6, [] { return Tensor::rand({37, 70}).sum(0); });
  check(1e-6, [] { return Tensor::rand({37, 70}).softmax(1); });
  check(0, [] { return Tensor::rand({37, 70}).max(1); });
}

TEST_F(HipDevice, ProductsAndOrders) {
  check(1e-6, [] { return Tensor::rand({33, 40}).matmul(Tensor::rand({40, 29})); });
  check(0, [] { return Tensor::rand({70, 65}).transpose(0, 1).contiguous() * 2.0; });
  check(0, [] { return Tensor::rand({5, 100}).sort().first; });
  check(1e-6, [] { return Tensor::rand({3, 100}).cumsum(1); });
}

// Rows are summed in their order, as on a CPU.
TEST_F(HipDevice, ScattersHaveTheBitsOfACpu) {
  for (int64_t width : {3, 64}) {
    check(0, [&] {
      const Tensor table = Tensor::rand({50, width}).is_param_();
      const Tensor index = (Tensor::rand({200}) * 50.0).cast(DType::I32);
      const Tensor loss = (table[{index}] * Tensor::rand({200, width})).sum();
      return loss.gradient({table})[0];
    });
  }
}

// Lists that are longer than a block sorts: the keys, which the sort moved, tell where the entries of a place lie.
TEST_F(HipDevice, ScattersOfLongListsHaveTheBitsOfACpu) {
  for (ScatterReduce reduce : {ScatterReduce::Sum, ScatterReduce::Amax}) {
    for (int64_t places : {200, 300}) {  // keys of one byte, and of two
      check(0, [&] {
        const Tensor index = (Tensor::rand({5000}) * double(places)).cast(DType::I32);
        return Tensor::zeros({places}).scatter_reduce(0, index, Tensor::rand({5000}), reduce);
      });
    }
  }
}

// Each column has indices of its own: along the first axis, and along the last one. The first of each pair
// fills the device with tall groups of rows; 203 source rows are no multiple of those that are read at once.
TEST_F(HipDevice, GradientsOfGathersHaveTheBitsOfACpu) {
  struct Case {
    Dims table;
    int64_t axis, count;
  };
  const Case cases[] = {
      {{150, 2500}, 0, 9}, {{50, 70}, 0, 203}, {{30, 70}, 1, 41}, {{4, 40, 6}, 1, 11}};
  for (const Case& of : cases) {
    for (DType dtype : {DType::F32, DType::BF16, DType::F64}) {
      for (DType index_dtype : {DType::I32, DType::I64}) {
        check(0, [&] {
          Dims shape = of.table;
          shape[size_t(of.axis)] = of.count;
          const Tensor table = Tensor::zeros(of.table, dtype).contiguous().realize().is_param_();
          const auto places = double(of.table[size_t(of.axis)]);
          const Tensor index = (Tensor::rand(shape) * places).cast(index_dtype).realize();
          const Tensor slope = Tensor::rand(shape).cast(dtype).realize();
          return (table.gather(of.axis, index) * slope).sum().gradient({table})[0];
        });
      }
    }
  }
}

TEST_F(HipDevice, ARecordingTakesNewValues) {
  check(1e-5, [] {
    Jit step = [](const Tensor& x, const Tensor& y) { return (x * y + 1.0).sum(1).softmax(0); };
    Tensor last;
    for (int i = 0; i < 4; ++i) last = step(Tensor::rand({8, 20}), Tensor::rand({8, 20}));
    return last;
  });
}

TEST_F(HipDevice, GpusShareABatch) {
  if (count_hip_devices() < 2) GTEST_SKIP() << "needs two GPUs";
  Runtime::shutdown();
  Runtime::configure({.devices = {"HIP"}, .devices_per_rank = 2});
  const Mesh mesh = Mesh::world({{"data", 2}});
  const Tensor x = Tensor::arange(0, 64, 1, DType::F64).reshape({8, 8});
  const Tensor sum = x.shard(mesh, {{"data", Shard(0)}}).sum(0);
  const std::vector<double> got = sum.to_vector<double>();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(got[size_t(i)], 8 * i + 8 * 28);
}

TEST(HipRuntime, SaysWhyThereIsNone) {
  if (count_hip_devices() > 0) GTEST_SKIP() << "there is one";
  EXPECT_NE(describe_hip(), "");
  Runtime::shutdown();
  EXPECT_THROW(
      {
        Runtime::configure({.devices = {"HIP"}});
        Tensor::rand({3}).realize();
      },
      std::exception);
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::hip_device_test
