// Long reductions in two steps: the same values, parts within the limits, rows left whole.
#include <numeric>

#include <gtest/gtest.h>

#include "core/passes/tidy.h"
#include "tests/core/passes/evaluate.h"

namespace tinyshard::split_reductions_test {
namespace {

using test::Evaluator;
using test::Values;

constexpr SplitLimits kMany{.parts = 1024, .columns = 1024};

UOp buffer(const Dims& shape) {
  Dims arg{1};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return UOp::make(Op::Buffer, DType::F64, {}, arg);
}

// The parts of the first step; 1 where there is one step only. Checks the values on the way.
int64_t parts_of(const Dims& shape, const Dims& axes, const SplitLimits& limits,
                 ReduceOp op = ReduceOp::Sum) {
  UOp in = buffer(shape), whole = reduce(op, in, axes);
  UOp split = split_reductions(std::span(&whole, 1), limits)[0];
  EXPECT_EQ(to_string(split.shape()), to_string(whole.shape()));
  Values values(size_t(in->numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = double(i * 7919 % 1001) - 500;
  Evaluator evaluator;
  evaluator.set(in, values);
  EXPECT_EQ(evaluator(split), evaluator(whole));
  int64_t parts = 1;
  for (const UOp& x : toposort(std::span(&split, 1))) {
    if (x.op() == Op::Contiguous) parts = x->numel() / whole->numel();
  }
  return parts;
}

TEST(SplitReductions, ToFewResultsAreSharedByAsManyAsTheLimitSays) {
  EXPECT_EQ(parts_of({1 << 16}, {0}, {}), 64);
  EXPECT_EQ(parts_of({1 << 16}, {0}, kMany), 1024);
  EXPECT_EQ(parts_of({256, 300}, {0, 1}, {}), 64);
  EXPECT_EQ(parts_of({256, 300}, {0, 1}, kMany), 256);
  EXPECT_EQ(parts_of({1 << 16}, {0}, {}, ReduceOp::Max), 64);
  EXPECT_EQ(parts_of({1 << 14}, {0}, kMany), 1) << "a short one";
}

TEST(SplitReductions, OfColumnsAreSharedWhereTheLimitsSaySo) {
  EXPECT_EQ(parts_of({1 << 15, 48}, {0}, {}), 1);
  EXPECT_EQ(parts_of({1 << 15, 48}, {0}, kMany), 256);
  EXPECT_EQ(parts_of({8, 1 << 12, 48}, {0, 1}, kMany), 8);
  EXPECT_EQ(parts_of({1 << 15, 2}, {0}, {}), 64);
}

TEST(SplitReductions, OfRowsStayWhole) {
  EXPECT_EQ(parts_of({48, 1 << 15}, {1}, kMany), 1);
  EXPECT_EQ(parts_of({2, 1 << 15}, {1}, kMany), 1024);
}

// Sums of very many floats have no more than so many in turn, whatever they result in.
TEST(SplitReductions, OfMillionsAreMadeOfShortSums) {
  EXPECT_EQ(parts_of({1 << 19}, {0}, {}), 64) << "shared already";
  EXPECT_EQ(parts_of({524309}, {0}, {}), 129) << "a prime number: the last part has zeros";
  EXPECT_EQ(parts_of({3, 1 << 19}, {1}, {}), 64) << "shared already";
  EXPECT_EQ(parts_of({1 << 19, 20}, {0}, {}), 128);
  EXPECT_EQ(parts_of({1 << 19}, {0}, {}, ReduceOp::Max), 64);
}

}  // namespace
}  // namespace tinyshard::split_reductions_test
