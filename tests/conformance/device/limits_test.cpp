// The ends of what a device of each kind takes: nothing at all, many dims, many operands, long sums,
// long chains, captured steps that run again and again with other values, and more memory than there
// is, after which it goes on.
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/conformance/device/device_case.h"

namespace tinyshard::test::limits_test {
namespace {

using Values = std::vector<double>;

class DeviceLimits : public DeviceCase {
 protected:
  std::string place() const { return std::string(GetParam()) + ":0"; }
  Tensor counted(int64_t n) const { return Tensor::arange(n, DType::F64).to(place()).realize(); }
  Values values(const Tensor& x) {
    x.realize();
    return device().executes() ? x.to_vector<double>() : Values();
  }
};

TEST_P(DeviceLimits, TensorsWithoutElements) {
  const Tensor none = Tensor::zeros({0, 3}).to(place()).realize(),
               some = Tensor::ones({2, 3}).to(place()).realize();
  EXPECT_EQ(values((none + 1).exp()), Values());
  EXPECT_EQ(values(none.cat(some, 0).sum(1)), device().executes() ? Values({3, 3}) : Values());
  EXPECT_EQ(values(none.sum(0)), device().executes() ? Values(3, 0) : Values());
  EXPECT_EQ(values(none.T().matmul(none)), device().executes() ? Values(9, 0) : Values());
  EXPECT_EQ(values(none.sort(0).first), Values());
}

TEST_P(DeviceLimits, ManyDims) {
  const Tensor x = counted(1 << 12);
  const Dims twos(12, 2);
  Dims back(12);
  std::iota(back.rbegin(), back.rend(), 0);
  const Tensor reversed = (x.reshape(Ints(twos)) * 2).permute(Ints(back)).contiguous();
  const Tensor sums = reversed.sum({0, 2, 4, 6, 8, 10}).reshape({64});
  const Values got = values(reversed), rows = values(sums);
  if (!device().executes()) return;
  double all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    size_t bits = 0;
    for (size_t b = 0; b < 12; ++b) bits |= (i >> b & 1) << (11 - b);
    ASSERT_EQ(got[i], 2.0 * double(bits)) << i;
  }
  for (double row : rows) all += row;
  EXPECT_EQ(all, 4096.0 * 4095.0);
}

TEST_P(DeviceLimits, ManyOperands) {
  constexpr int64_t kOperands = 150, kSize = 33, kAdded = kOperands * (kOperands - 1) / 2;
  std::vector<Tensor> operands;
  for (int64_t i = 0; i < kOperands; ++i)
    operands.push_back((counted(kSize) + i).contiguous().realize());
  Tensor sum = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) sum = sum + operands[i];
  const Values got = values(sum);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], double(i) * kOperands + kAdded) << i;
}

// Sums ones, which pairs or blocks count exactly: more of them than f32 counts one by one.
TEST_P(DeviceLimits, LongSums) {
  constexpr int64_t kOnes = (int64_t{1} << 24) + 1000;
  const Tensor ones = Tensor::ones({kOnes}, DType::U8).to(place()).realize();
  const Values counted = values(ones.cast(DType::F32).sum()),
               exact = values(ones.cast(DType::I64).sum());
  if (!device().executes()) return;
  EXPECT_EQ(exact[0], double(kOnes));
  EXPECT_NEAR(counted[0], double(kOnes), 2);
}

// Each is there for what comes after it, however late the device runs them.
TEST_P(DeviceLimits, LongChainsOfWrites) {
  Tensor x = counted(100).clone().realize();
  std::vector<Tensor> before;
  for (int i = 0; i < 200; ++i) {
    if (i % 50 == 0) before.push_back((x * 2).realize());
    x.assign(x + 1);
    if (i % 3 == 0) x.realize();
  }
  const Values last = values(x);
  for (size_t i = 0; i < last.size(); ++i) ASSERT_EQ(last[i], double(i) + 200);
  for (size_t k = 0; k < before.size(); ++k) {
    const Values then = values(before[k]);
    for (size_t i = 0; i < then.size(); ++i) ASSERT_EQ(then[i], 2 * (double(i) + 50.0 * double(k)));
  }
}

// A step that is replayed reads the arguments of each call and keeps what it writes; results of
// earlier calls stay as they were given.
TEST_P(DeviceLimits, StepsAreReplayed) {
  Tensor state = counted(1000).zeros_like().clone().realize();
  Jit step = [&](const Tensor& x) {
    state.assign(state + x);
    return state.sum() + x.max();
  };
  std::vector<Tensor> results;
  double sum = 0;
  for (int i = 1; i <= 30; ++i) {
    const Tensor y = step((counted(1000) * i).realize());
    if (i % 10 == 0) results.push_back(y.clone().realize());
  }
  if (!device().executes()) return;
  for (int i = 1, k = 0; i <= 30; ++i) {
    sum += 499500.0 * i;
    if (i % 10 != 0) continue;
    EXPECT_EQ(results[size_t(k++)].item<double>(), sum + 999.0 * i);
  }
  const Values last = values(state);
  for (size_t i = 0; i < last.size(); ++i) ASSERT_EQ(last[i], 465.0 * double(i));
}

TEST_P(DeviceLimits, MoreMemoryThanThereIsEndsNothing) {
  TINYSHARD_NEED_VALUES();
  const Tensor x = counted(1000), huge = x.sum() + Tensor::zeros({int64_t{1} << 50}).to(place());
  EXPECT_THROW(huge.realize(), DeviceError);
  EXPECT_EQ(values(x.sum()), Values({499500}));
}

TINYSHARD_ON_EVERY_DEVICE(DeviceLimits);

}  // namespace
}  // namespace tinyshard::test::limits_test
