// TS_CHECK. memory: kernels with a wrong index, by each way in which code reads and writes memory;
// all of them would touch what is not theirs, checked code ends and says which element it was.
// values: results that somebody changed by as little as counts (that right ones are accepted is
// tested by every kernel of Kernel::check).
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/codegen/codegen.h"
#include "core/codegen/interpret.h"
#include "tests/core/codegen/harness.h"
#include "tests/message_of.h"

namespace tinyshard::test {
namespace {

using testing::HasSubstr;

class MemoryChecks : public testing::Test {
 protected:
  void SetUp() override {
    if (machine().target().multiprocessors > 0) GTEST_SKIP() << "code for CPUs is checked";
    if (const char* set = std::getenv("TS_CHECK")) before_ = set;
    use("memory");
  }
  void TearDown() override { use(before_); }

  static void use(const std::string& checks) {
    ::setenv("TS_CHECK", checks.c_str(), 1);
    reload_options();
  }

  // out[i] = in[index], with `in` of `numel` elements.
  template <class Index>
  static std::string loading(int64_t size, int64_t numel, Index index, const UOp& valid = UOp(),
                             DType dtype = DType::F32) {
    Kernel k("loading");
    int in = k.param(dtype, numel), out = k.param(dtype, size);
    UOp i = k.loop(size);
    k.store(out, i, k.load(in, index(i), valid));
    return message_of<InternalError>([&] { k.run(); });
  }
  template <class Index>
  static std::string storing(int64_t size, int64_t numel, Index index, DType dtype = DType::F32) {
    Kernel k("storing");
    int in = k.param(dtype, size), out = k.param(dtype, numel);
    UOp i = k.loop(size);
    k.store(out, index(i), k.load(in, i));
    return message_of<InternalError>([&] { k.run(); });
  }

  std::string before_;
};

constexpr auto kStoredTypes = {DType::U8, DType::F16, DType::F32, DType::F64};

TEST_F(MemoryChecks, LoadsOfNeighbours) {
  for (DType dtype : kStoredTypes) {
    for (int64_t size : {1, 2, 5, 16, 64, 67, 1000, 10'003}) {
      SCOPED_TRACE(fmt::format("{} {}", name(dtype), size));
      const auto same = [](const UOp& i) { return i; };
      const auto next = [](const UOp& i) { return i + 1; };
      const auto last = [](const UOp& i) { return i - index_const(1); };
      EXPECT_EQ(loading(size, size, same, {}, dtype), "");
      EXPECT_EQ(loading(size, size + 1, next, {}, dtype), "");
      EXPECT_THAT(
          loading(size, size, next, {}, dtype),
          HasSubstr(fmt::format("kernel k_loading loads element {} of its parameter 0, which "
                                "has {}",
                                size, size)));
      EXPECT_THAT(loading(size, size, last, {}, dtype), HasSubstr("loads element -1 of"));
    }
  }
}

TEST_F(MemoryChecks, LoadsInOtherOrders) {
  const auto twice = [](const UOp& i) { return i * 2; };
  EXPECT_EQ(loading(100, 199, twice), "");
  EXPECT_THAT(loading(100, 198, twice), HasSubstr("loads element 198 of"));
  const auto far = [](const UOp& i) { return i * 1000; };
  EXPECT_EQ(loading(100, 99'001, far), "");
  EXPECT_THAT(loading(100, 99'000, far), HasSubstr("loads element 99000 of"));
  const auto back = [](const UOp& i) { return index_const(100) - i; };
  EXPECT_EQ(loading(100, 101, back), "");
  EXPECT_THAT(loading(100, 100, back), HasSubstr("loads element 100 of"));
  const auto square = [](const UOp& i) { return binary(Op::Mul, i, i); };
  EXPECT_EQ(loading(30, 29 * 29 + 1, square), "");
  EXPECT_THAT(loading(30, 29 * 29, square), HasSubstr("loads element 841 of"));
  const auto one = [](const UOp&) { return index_const(7); };
  EXPECT_EQ(loading(30, 8, one), "");
  EXPECT_THAT(loading(30, 7, one), HasSubstr("loads element 7 of"));
}

TEST_F(MemoryChecks, WhatIsNotReadDoesNotCount) {
  for (int64_t stride : {1, 3, 100}) {
    Kernel k("padded");
    int in = k.param(DType::F32, 50 * stride), out = k.param(DType::F32, 60);
    UOp i = k.loop(60);
    UOp valid = binary(Op::And, index_const(4) < i, i < index_const(55));
    k.store(out, i, k.load(in, (i - index_const(5)) * stride, valid));
    k.run();
    Kernel wrong("padded");
    in = wrong.param(DType::F32, 50 * stride), out = wrong.param(DType::F32, 60);
    i = wrong.loop(60);
    valid = binary(Op::And, index_const(4) < i, i < index_const(56));
    wrong.store(out, i, wrong.load(in, (i - index_const(5)) * stride, valid));
    EXPECT_THAT(message_of<InternalError>([&] { wrong.run(); }),
                HasSubstr(fmt::format("loads element {} of", 50 * stride)));
  }
}

TEST_F(MemoryChecks, LoadsInFolds) {
  for (int64_t missing : {0, 1}) {
    Kernel k("sums");
    int in = k.param(DType::F32, 37 * 45 - missing), out = k.param(DType::F32, 37);
    UOp i = k.loop(37), j = k.fold_range(45);
    k.store(out, i, sum(k.load(in, i * 45 + j), {j}));
    const std::string error = message_of<InternalError>([&] { k.run(3); });
    EXPECT_EQ(error.empty(), missing == 0);
    EXPECT_THAT(error, HasSubstr(missing == 0 ? "" : "loads element 1664 of"));
  }
}

TEST_F(MemoryChecks, Stores) {
  for (DType dtype : kStoredTypes) {
    for (int64_t size : {1, 2, 5, 16, 64, 67, 1000, 10'003}) {
      SCOPED_TRACE(fmt::format("{} {}", name(dtype), size));
      const auto next = [](const UOp& i) { return i + 1; };
      const auto last = [](const UOp& i) { return i - index_const(1); };
      EXPECT_EQ(storing(size, size + 1, next, dtype), "");
      EXPECT_THAT(
          storing(size, size, next, dtype),
          HasSubstr(fmt::format("kernel k_storing stores element {} of its parameter 1, which "
                                "has {}",
                                size, size)));
      EXPECT_THAT(storing(size, size, last, dtype), HasSubstr("stores element -1 of"));
    }
  }
  const auto twice = [](const UOp& i) { return i * 2; };
  EXPECT_EQ(storing(100, 199, twice), "");
  EXPECT_THAT(storing(100, 198, twice), HasSubstr("stores element 198 of"));
  const auto far = [](const UOp& i) { return i * 1000; };
  EXPECT_EQ(storing(100, 99'001, far), "");
  EXPECT_THAT(storing(100, 99'000, far), HasSubstr("stores element 99000 of"));
  const auto back = [](const UOp& i) { return index_const(100) - i; };
  EXPECT_EQ(storing(100, 101, back), "");
  EXPECT_THAT(storing(100, 100, back), HasSubstr("stores element 100 of"));
}

// The kernel itself leaves those out (core/codegen/kernel.h).
TEST_F(MemoryChecks, LoadedIndicesAreNoFaults) {
  Kernel k("gather");
  int table = k.param(DType::F32, 10), index = k.param(DType::I32, 40),
      out = k.param(DType::F32, 40), scattered = k.param(DType::F32, 10);
  for (int64_t n = 0; n < 40; ++n) k.buffer(index).set(n, double(n - 15));
  UOp i = k.loop(40), at = cast(k.load(index, i), DType::Index);
  k.store(out, i, k.load(table, at));
  k.store(scattered, at, real(1));
  k.run();
  EXPECT_EQ(k.buffer(out).get(5).real, 0);
  EXPECT_EQ(k.buffer(out).get(16).real, k.buffer(table).get(1).real);
}

TEST_F(MemoryChecks, CodeWithoutChecksIsOther) {
  Kernel k("plain");
  int in = k.param(DType::F32, 8), out = k.param(DType::F32, 8);
  UOp i = k.loop(8);
  k.store(out, i, k.load(in, i));
  const auto with = k.compile();
  EXPECT_EQ(with->code.checked_buffers, 2);
  use("");
  const auto without = k.compile();
  EXPECT_EQ(without->code.checked_buffers, -1);
  EXPECT_LT(without->code.bytes.size(), with->code.bytes.size());
}

// Runs the kernel, changes element `at` of `slot` to `to(value)`, and asks for the first
// difference.
template <class To>
std::optional<ValueDifference> changed(Kernel& k, int slot, int64_t at, To to,
                                       const InterpretOptions& options = {}) {
  const size_t slots = k.source().params.size();
  std::vector<std::vector<char>> before;
  std::vector<const void*> old, now;
  for (size_t i = 0; i < slots; ++i) {
    const auto* data = static_cast<const char*>(k.buffer(int(i)).data());
    before.emplace_back(data, data + k.buffer(int(i)).bytes());
  }
  k.run();
  for (size_t i = 0; i < slots; ++i) {
    old.push_back(before[i].data());
    now.push_back(k.buffer(int(i)).data());
  }
  EXPECT_FALSE(first_difference(k.source(), old, now, k.coordinates, options));
  const Scalar value = k.buffer(slot).get(at);
  write_element(k.buffer(slot).data(), k.buffer(slot).dtype(), at, to(value));
  return first_difference(k.source(), old, now, k.coordinates, options);
}

Scalar next_float(Scalar v) { return {std::nextafterf(float(v.real), 100.0f), 0}; }

TEST(ValueChecks, ElementwiseResultsAreEqualToTheBit) {
  if (!machine().computes()) GTEST_SKIP() << "nothing is run";
  Kernel k("map");
  int a = k.param(DType::F32, 60), out = k.param(DType::F32, 60), flags = k.param(DType::I8, 60);
  UOp i = k.loop(12), j = k.loop(5), x = k.load(a, i * 5 + j);
  k.store(out, j * 12 + i, binary(Op::Mul, x, x) + real(0.1));
  k.store(flags, i * 5 + j, cast(x < real(0), DType::I8));
  const auto found = changed(k, out, 37, next_float);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->param, out);
  EXPECT_EQ(found->element, 37);
  EXPECT_EQ(found->allowed, 0);
  EXPECT_NE(found->actual, found->expected);
  EXPECT_EQ(found->value.op(), Op::Add);
  const auto flag = changed(k, flags, 59, [](Scalar v) { return Scalar{0, 1 - v.whole}; });
  ASSERT_TRUE(flag);
  EXPECT_EQ(flag->element, 59);
  EXPECT_EQ(flag->param, flags);
}

TEST(ValueChecks, SumsAreBoundedAndWhatFollowsThem) {
  if (!machine().computes()) GTEST_SKIP() << "nothing is run";
  Kernel k("softmax");
  int a = k.param(DType::F32, 400), out = k.param(DType::F32, 400), rows = k.param(DType::F32, 4);
  UOp i = k.loop(4), j = k.loop(100), n = k.fold_range(100), m = k.fold_range(100);
  UOp top = fold(ReduceOp::Max, k.load(a, i * 100 + n), {n});
  UOp total = sum(exp(k.load(a, i * 100 + m) - top), {m});
  k.store(out, i * 100 + j, binary(Op::Div, exp(k.load(a, i * 100 + j) - top), total));
  k.store(rows, i, top);
  const auto relative = [](double by) {
    return [by](Scalar v) { return Scalar{v.real * (1 + by), 0}; };
  };
  EXPECT_FALSE(changed(k, out, 250, next_float));  // another order might give this
  const auto found = changed(k, out, 250, relative(1e-4));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->element, 250);
  EXPECT_GT(found->allowed, 0);
  EXPECT_LT(found->allowed, 1e-4);
  EXPECT_TRUE(changed(k, rows, 3, next_float));  // the order of a maximum does not matter
}

TEST(ValueChecks, WhatIsNotStoredStays) {
  if (!machine().computes()) GTEST_SKIP() << "nothing is run";
  Kernel k("even");
  int out = k.param(DType::I32, 20);
  UOp i = k.loop(10);
  k.store(out, i * 2, cast(i, DType::I32));
  const auto found = changed(k, out, 7, [](Scalar v) { return Scalar{0, v.whole + 1}; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->element, 7);
  EXPECT_FALSE(found->value);
}

TEST(ValueChecks, OfLargeKernelsSomeElementsAreCompared) {
  if (!machine().computes()) GTEST_SKIP() << "nothing is run";
  Kernel k("large");
  int a = k.param(DType::F32, 10'000), out = k.param(DType::F32, 10'000);
  UOp i = k.loop(10'000);
  k.store(out, i, k.load(a, i) + real(1));
  const InterpretOptions few{.most = 1000};
  EXPECT_TRUE(changed(k, out, 0, next_float, few));
  EXPECT_TRUE(changed(k, out, 9'999, next_float, few));
  EXPECT_FALSE(changed(k, out, 1, next_float, few));
}

// A comparison of sums may go either way: what is chosen by it is not held against the code.
TEST(ValueChecks, WhatHangsOnACloseComparisonIsLeftOpen) {
  if (!machine().computes()) GTEST_SKIP() << "nothing is run";
  Kernel k("close");
  int a = k.param(DType::F32, 100), out = k.param(DType::F32, 2);
  UOp i = k.loop(2), n = k.fold_range(100), total = sum(k.load(a, n), {n});
  UOp same = binary(Op::CmpLt, total, total);  // the bound of each side is above their distance
  k.store(out, i, where(same, real(5), real(7)));
  EXPECT_FALSE(changed(k, out, 1, [](Scalar) { return Scalar{5, 0}; }));
  EXPECT_TRUE(changed(k, out, 1, [](Scalar) { return Scalar{9.5, 0}; }));
}

}  // namespace
}  // namespace tinyshard::test
