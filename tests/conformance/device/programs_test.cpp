// Programs of a device: generated kernels and library calls run in the order of the calls, with the
// pointers of each call, again when they are recorded, and from several threads.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <thread>

#include "core/base/error.h"
#include "core/codegen/codegen.h"
#include "tests/conformance/device/device_case.h"

namespace tinyshard::test::programs_test {
namespace {

using DevicePrograms = DeviceCase;
using Ints = std::vector<int32_t>;

// out[i] = in[i] * 2 + coordinate, for n elements; slot 0 is `in`, slot 1 is `out`.
std::unique_ptr<Program> twice_plus(Device& device, int64_t n) {
  const UOp i = range(0, n, RangeKind::Loop);
  auto param = [](int64_t slot) { return UOp::make(Op::Param, DType::I32, {}, Dims{slot}); };
  const UOp in = UOp::make(Op::Load, DType::I32, {param(0), i});
  const UOp place = cast(UOp::make(Op::DeviceCoordinate, DType::Index, {}, Dims{0, 8}), DType::I32);
  const UOp out = binary(Op::Add, binary(Op::Mul, in, const_int(DType::I32, 2)), place);
  KernelSource source{.name = "twice_plus",
                      .sink = UOp::make(Op::Sink, DType::Bool,
                                        {UOp::make(Op::Store, DType::I32, {param(1), i, out})}),
                      .loops = {i},
                      .params = {{DType::I32, n, false, -1}, {DType::I32, n, true, -1}},
                      .choice = 0,
                      .scalars = {}};
  const KernelSource* pointer = &source;
  return device.load(compile_kernels(std::span(&pointer, 1), device.target())[0]->code);
}

Ints iota(size_t n) {
  Ints values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST_P(DevicePrograms, RunWithThePointersAndThePlaceOfEachCall) {
  TINYSHARD_NEED_VALUES();
  for (size_t n : {size_t{1}, size_t{17}, size_t{1000}, size_t{300000}}) {
    auto program = twice_plus(device(), int64_t(n));
    EXPECT_FALSE(program->describe().empty());
    const OnDevice<int32_t> a(device(), iota(n)), b(device(), n), c(device(), n);
    for (int64_t place : {0, 5}) {
      void *to_b[] = {a.get(), b.get()}, *to_c[] = {b.get(), c.get()};
      program->launch(to_b, &place);
      program->launch(to_c, &place);
      Ints expected = iota(n);
      for (int32_t& x : expected) x = 4 * x + 3 * int32_t(place);
      EXPECT_EQ(c.values(), expected) << n;
    }
  }
}

// Nothing waits in between: what is copied, freed and taken anew comes after the launches before it.
TEST_P(DevicePrograms, CopiesAndFreedMemoryKeepTheOrderOfTheCalls) {
  TINYSHARD_NEED_VALUES();
  constexpr size_t n = 20000;
  auto program = twice_plus(device(), n);
  const int64_t place = 1;
  const OnDevice<int32_t> last(device(), n);
  for (int32_t round = 0; round < 20; ++round) {
    const OnDevice<int32_t> in(device(), Ints(n, round)), between(device(), n);
    void *first[] = {in.get(), between.get()}, *second[] = {between.get(), last.get()};
    program->launch(first, &place);
    program->launch(second, &place);
    if (round % 5 == 4) {
      EXPECT_EQ(last.values(), Ints(n, 4 * round + 3));
    }
  }
  device().synchronize();
}

TEST_P(DevicePrograms, OfADeviceThatPlansDoNothing) {
  if (device().executes()) GTEST_SKIP() << device().name() << " runs them";
  auto program = twice_plus(device(), 10);
  const OnDevice<int32_t> a(device(), size_t{10}), b(device(), size_t{10});
  void* buffers[] = {a.get(), b.get()};
  const int64_t place = 0;
  program->launch(buffers, &place);
  device().synchronize();
}

TEST_P(DevicePrograms, RecordingsReplayAndAreRebound) {
  if (!device().can_record()) GTEST_SKIP() << device().name() << " records nothing";
  auto program = twice_plus(device(), 100);
  OnDevice<int32_t> a(device(), iota(100)), b(device(), Ints(100)), c(device(), Ints(100));
  const OnDevice<int32_t> other(device(), Ints(100, 7));
  void *first[] = {a.get(), b.get()}, *second[] = {b.get(), c.get()};
  const int64_t place = 1;
  device().begin_recording();
  program->launch(first, &place);
  program->launch(second, &place);
  auto recording = device().end_recording();
  EXPECT_EQ(c.values(), Ints(100)) << "recorded, not run";
  recording->launch();
  Ints expected = iota(100);
  for (int32_t& x : expected) x = 4 * x + 3;
  EXPECT_EQ(c.values(), expected);
  first[0] = other.get();
  void* const* changed[] = {first};
  ASSERT_TRUE(recording->update(changed));
  recording->launch();
  EXPECT_EQ(c.values(), Ints(100, 31));
  device().begin_recording();
  program->launch(first, &place);
  device().abandon_recording();
  c.set(Ints(100, 5));
  EXPECT_EQ(c.values(), Ints(100, 5)) << "nothing is recorded any more";
}

TEST_P(DevicePrograms, EventsOrderTheQueues) {
  TINYSHARD_NEED_VALUES();
  auto event = device().make_event();
  if (!event) GTEST_SKIP() << device().name() << " has one queue";
  auto program = twice_plus(device(), 1000);
  const OnDevice<int32_t> a(device(), iota(1000)), b(device(), size_t{1000});
  void* buffers[] = {a.get(), b.get()};
  const int64_t place = 0;
  program->launch(buffers, &place);
  device().record(*event, Queue::Compute);
  device().wait(*event, Queue::Communication);
  device().synchronize();
  EXPECT_TRUE(device().reached(*event));
}

TEST_P(DevicePrograms, AreLaunchedByThreadsAtOnce) {
  TINYSHARD_NEED_VALUES();
  auto program = twice_plus(device(), 5000);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const OnDevice<int32_t> a(device(), Ints(5000, t)), b(device(), size_t{5000});
      void* buffers[] = {a.get(), b.get()};
      const int64_t place = t;
      for (int i = 0; i < 20; ++i) program->launch(buffers, &place);
      EXPECT_EQ(b.values(), Ints(5000, 3 * t));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// --- library calls -------------------------------------------------------------------------------

struct ProductCase {
  const char* name;
  int64_t rows, columns, terms;
  bool first_transposed, second_transposed;
};

// The reference is a sum in double of the numbers as f32 holds them; the bound is that of a sum of
// `terms` products of numbers up to 1 in any order.
TEST_P(DevicePrograms, ProductsOfEveryLayout) {
  TINYSHARD_NEED_VALUES();
  int taken = 0;
  for (const ProductCase& c : {ProductCase{"one", 1, 1, 1, false, false},
                               {"odd", 7, 5, 3, false, false},
                               {"first", 33, 17, 29, true, false},
                               {"second", 33, 17, 29, false, true},
                               {"both", 64, 48, 40, true, true},
                               {"long", 4, 6, 1000, false, true}}) {
    SCOPED_TRACE(c.name);
    // These stand for the operands in the call: they have their shapes, and are not looked at.
    const UOp x = const_float(DType::F32, 1, Dims{c.rows, c.terms});
    const UOp y = const_float(DType::F32, 2, Dims{c.terms, c.columns});
    LibraryCall call = row_major_call(UOp::make(Op::Dot, DType::F32, {x, y}, Dims{0}));
    if (c.first_transposed) call.operands[0].strides = {1, c.rows};
    if (c.second_transposed) call.operands[1].strides = {1, c.terms};
    std::string why;
    if (!device().supports(call, &why)) {
      EXPECT_FALSE(why.empty());
      continue;
    }
    ++taken;
    std::vector<float> a(size_t(c.rows * c.terms)), b(size_t(c.terms * c.columns));
    for (size_t i = 0; i < a.size(); ++i) a[i] = float(std::sin(double(i)));
    for (size_t i = 0; i < b.size(); ++i) b[i] = float(std::cos(double(i) * 0.7));
    const OnDevice<float> left(device(), a), right(device(), b);
    const OnDevice<float> out(device(), size_t(c.rows * c.columns));
    auto program = device().library(call);
    void* buffers[] = {left.get(), right.get(), out.get()};
    program->launch(buffers, nullptr);
    const std::vector<float> result = out.values();
    const double bound = double(c.terms) * double(c.terms) * 6e-8 + 1e-6;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t k = 0; k < c.columns; ++k) {
        double sum = 0;
        for (int64_t t = 0; t < c.terms; ++t) {
          sum +=
              double(a[size_t(r * call.operands[0].strides[0] + t * call.operands[0].strides[1])]) *
              b[size_t(t * call.operands[1].strides[0] + k * call.operands[1].strides[1])];
        }
        ASSERT_NEAR(result[size_t(r * c.columns + k)], sum, bound) << r << ", " << k;
      }
    }
  }
  if (taken == 0) GTEST_SKIP() << device().name() << " leaves products to generated kernels";
}

TINYSHARD_ON_EVERY_DEVICE(DevicePrograms);

}  // namespace
}  // namespace tinyshard::test::programs_test
