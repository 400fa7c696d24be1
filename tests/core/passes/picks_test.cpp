// Sums with one term: what is left of a sum over a row that is zero but at one place.
#include <gtest/gtest.h>

#include "core/passes/tidy.h"
#include "tests/core/passes/evaluate.h"

namespace tinyshard::picks_test {
namespace {

using test::Evaluator;
using test::Values;

constexpr int64_t kRows = 5, kColumns = 7;
const Dims kShape{kRows, kColumns};

UOp buffer(int64_t id, DType dtype, const Dims& shape) {
  Dims arg{id};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return UOp::make(Op::Buffer, dtype, {}, arg);
}

class SumOfPick : public ::testing::Test {
 protected:
  UOp index = buffer(1, DType::I32, {kRows, 1}), upstream = buffer(2, DType::F64, {kRows, 1});

  static UOp positions(int64_t axis = 1) {
    Dims line{1, 1};
    line[size_t(axis)] = kShape[size_t(axis)];
    UOp iota = UOp::make(Op::Iota, DType::I64, {}, Dims{kShape[size_t(axis)]});
    return expand(reshape(cast(iota, DType::I32), line), kShape);
  }
  UOp one_hot(const UOp& value) {
    return where(binary(Op::CmpEq, positions(), expand(index, kShape)), value,
                 const_like(value, 0));
  }
  UOp wide_upstream() { return expand(upstream, kShape); }

  // Returns whether tidying leaves a sum; the values are the same.
  bool sums_after_tidy(const UOp& root) {
    UOp tidied = tidy(std::span(&root, 1))[0];
    Evaluator evaluator;
    evaluator.set(index, {0, 6, 3, 7, -1});  // two of them out of range
    evaluator.set(upstream, {1.5, -2, 0.25, 8, 16});
    EXPECT_EQ(evaluator(tidied), evaluator(root));
    for (const UOp& x : toposort(std::span(&tidied, 1))) {
      if (x.op() == Op::Reduce) return true;
    }
    return false;
  }
};

TEST_F(SumOfPick, IsTheTerm) {
  EXPECT_FALSE(sums_after_tidy(reduce(ReduceOp::Sum, one_hot(wide_upstream()), Dims{1})));
  EXPECT_FALSE(sums_after_tidy(
      reduce(ReduceOp::Sum, one_hot(const_float(DType::F64, -0.5, kShape)), Dims{1})));
  UOp negative = unary(Op::Neg, one_hot(wide_upstream()));
  EXPECT_FALSE(sums_after_tidy(reduce(ReduceOp::Sum, negative, Dims{1})));
}

TEST_F(SumOfPick, LeavesOtherReductionsAlone) {
  EXPECT_TRUE(sums_after_tidy(reduce(ReduceOp::Max, one_hot(wide_upstream()), Dims{1})));
  EXPECT_TRUE(sums_after_tidy(reduce(ReduceOp::Sum, one_hot(wide_upstream()), Dims{0})));
  EXPECT_TRUE(sums_after_tidy(reduce(ReduceOp::Sum, one_hot(wide_upstream()), Dims{0, 1})));
  // A value that differs along the row, and places that do not lie along it.
  UOp differs = cast(positions(), DType::F64);
  EXPECT_TRUE(sums_after_tidy(reduce(ReduceOp::Sum, one_hot(differs), Dims{1})));
  UOp across = where(binary(Op::CmpEq, positions(0), expand(index, kShape)), wide_upstream(),
                     const_float(DType::F64, 0, kShape));
  EXPECT_TRUE(sums_after_tidy(reduce(ReduceOp::Sum, across, Dims{1})));
}

}  // namespace
}  // namespace tinyshard::picks_test
