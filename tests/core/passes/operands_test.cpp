// Where the operands of products lie, and what is copied for that.
#include "core/passes/operands.h"

#include <gtest/gtest.h>

#include "tests/core/passes/same_values.h"

namespace tinyshard::operands_test {
namespace {

UOp buffer(int64_t id, const Dims& shape) { return test::buffer(id, shape, DType::F32); }

UOp transposed(const UOp& x) { return swap_last_two(x); }
UOp dot(const UOp& a, const UOp& b) { return UOp::make(Op::Dot, a.dtype(), {a, b}, Dims{0}); }

// Returns a product after a pass that may copy `first` or `second` elements.
UOp laid(const UOp& x, int64_t first, int64_t second) {
  return lay_along_sums(std::span(&x, 1), [&](const LibraryCall&, int operand) {
    return operand == 0 ? first : second;
  })[0];
}
bool is_copied(const UOp& operand) {
  UOp at = operand;
  while (is_movement(at.op())) at = at.src(0);
  return at.op() == Op::Contiguous;
}

TEST(RunsAlongLast, FollowsPermutesToTheBuffer) {
  EXPECT_TRUE(runs_along_last(buffer(1, {4, 5})));
  EXPECT_FALSE(runs_along_last(transposed(buffer(1, {4, 5}))));
  EXPECT_TRUE(runs_along_last(permute(buffer(1, {2, 4, 5}), Dims{1, 0, 2}))) << "heads";
  EXPECT_FALSE(runs_along_last(permute(buffer(1, {2, 4, 5}), Dims{1, 2, 0})));
  EXPECT_FALSE(runs_along_last(reshape(transposed(buffer(1, {5, 4})), Dims{2, 2, 5})));
  EXPECT_TRUE(runs_along_last(cast(reshape(buffer(1, {20}), Dims{4, 5}), DType::F64)));
}

TEST(RunsAlongLast, OverlooksDimsOfSizeOne) {
  EXPECT_TRUE(runs_along_last(permute(buffer(1, {4, 5, 1}), Dims{0, 2, 1})));
  EXPECT_TRUE(runs_along_last(permute(buffer(1, {1, 4, 5}), Dims{1, 2, 0})));
  EXPECT_FALSE(runs_along_last(permute(buffer(1, {5, 4, 1}), Dims{1, 0, 2})));
  EXPECT_TRUE(runs_along_last(permute(buffer(1, {1, 1}), Dims{1, 0})));
}

TEST(OperandsOfProducts, StayWhereTheyLieAlongTheSum) {
  UOp x = dot(buffer(1, {4, 6}), transposed(buffer(2, {5, 6})));
  EXPECT_EQ(laid(x, 1000, 1000), x);
}

TEST(OperandsOfProducts, AreCopiedWhereThatIsWorthIt) {
  UOp x = dot(transposed(buffer(1, {6, 4})), buffer(2, {6, 5}));
  UOp both = laid(x, 24, 30);
  EXPECT_TRUE(is_copied(both.src(0)) && is_copied(both.src(1)));
  EXPECT_TRUE(runs_along_last(both.src(0)) && runs_along_last(transposed(both.src(1))));
  EXPECT_TRUE(std::ranges::equal(both.shape(), x.shape()));
  UOp first = laid(x, 24, 29);
  EXPECT_TRUE(is_copied(first.src(0)) && !is_copied(first.src(1)));
  UOp second = laid(x, 23, 30);
  EXPECT_TRUE(!is_copied(second.src(0)) && is_copied(second.src(1)));
  EXPECT_EQ(laid(x, 23, 29), x);
}

// Each question tells how the operands lie by then.
TEST(OperandsOfProducts, AreCopiedOneByOneTheSmallerOneFirst) {
  std::vector<std::pair<int, bool>> asked;  // operand, and whether the other one lies along the sum
  auto one_is_enough = [&](const LibraryCall& call, int operand) {
    bool other = operand == 0 ? call.operands[1].strides[0] == 1 : call.operands[0].strides[1] == 1;
    asked.emplace_back(operand, other);
    return other ? int64_t{0} : int64_t{1000};
  };
  UOp x = dot(transposed(buffer(1, {6, 5})), buffer(2, {6, 4}));
  UOp y = lay_along_sums(std::span(&x, 1), one_is_enough)[0];
  EXPECT_EQ(asked, (std::vector<std::pair<int, bool>>{{1, false}, {0, true}}));
  EXPECT_TRUE(!is_copied(y.src(0)) && is_copied(y.src(1)));
}

TEST(OperandsOfProducts, ThatAreThereFirstAreCopiedOfTwoAlike) {
  UOp early = buffer(1, {6, 5}), late = unary(Op::Exp2, buffer(2, {6, 5}));
  auto one_is_enough = [&](const LibraryCall& call, int operand) {
    bool other = operand == 0 ? call.operands[1].strides[0] == 1 : call.operands[0].strides[1] == 1;
    return other ? int64_t{0} : int64_t{1000};
  };
  for (bool swapped : {false, true}) {
    UOp x = dot(transposed(swapped ? late : early), swapped ? early : late);
    UOp y = lay_along_sums(std::span(&x, 1), one_is_enough)[0];
    EXPECT_EQ(is_copied(y.src(0)), !swapped);
    EXPECT_EQ(is_copied(y.src(1)), swapped);
  }
}

}  // namespace
}  // namespace tinyshard::operands_test
