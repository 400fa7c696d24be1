// Scattered sums that start from what is added to them: the same values in one item.
#include "core/passes/scatters.h"

#include <gtest/gtest.h>

#include "tests/core/passes/same_values.h"

namespace tinyshard {
namespace {

using testing::buffer;
using testing::Evaluator;
using testing::Values;

bool all(const LibraryCall&) { return true; }
bool none(const LibraryCall&) { return false; }

// Three rows for a table [5, 4], two of them for the same one, beside the gradient of a product.
struct Table {
  UOp index = buffer(1, Dims{3, 4}, DType::I32), rows = buffer(2, Dims{3, 4}, DType::F32);
  UOp a = buffer(3, Dims{5, 2}, DType::BF16), b = buffer(4, Dims{2, 4}, DType::BF16);
  UOp scatter = UOp::make(Op::ScatterAdd, DType::F32, {index, rows}, Dims{0, 5});
  UOp product = UOp::make(Op::Dot, DType::BF16, {a, b}, Dims{0});
  UOp wide = cast(product, DType::F32);

  Values values(const UOp& root) const {
    Evaluator evaluator;
    evaluator.set(index, {1, 1, 1, 1, 4, 4, 4, 4, 1, 1, 1, 1});
    evaluator.set(rows, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    evaluator.set(a, {1, -1, 2, 0, 0, 3, 1, 1, -2, 1});
    evaluator.set(b, {1, 2, 3, 4, 5, 6, 7, 8});
    return evaluator(root);
  }
};

UOp started(const UOp& root) { return start_scatters(std::span(&root, 1), all)[0]; }

TEST(Scatters, StartFromAProductInAnyOrderAndShape) {
  Table t;
  for (const UOp& sum :
       {binary(Op::Add, t.wide, t.scatter), binary(Op::Add, t.scatter, t.wide),
        binary(Op::Add, reshape(cast(reshape(t.product, Dims{20}), DType::F32), Dims{5, 4}),
               t.scatter)}) {
    UOp result = started(sum);
    ASSERT_EQ(result.op(), Op::ScatterAdd) << print(std::span(&result, 1));
    ASSERT_EQ(result->sources, 3);
    EXPECT_EQ(result.src(2), t.product) << "not widened before";
    EXPECT_EQ(t.values(result), t.values(sum));
  }
}

TEST(Scatters, StartFromStorages) {
  Table t;
  UOp storage = buffer(5, Dims{5, 4}, DType::F32);
  EXPECT_EQ(started(binary(Op::Add, storage, t.scatter)).op(), Op::ScatterAdd);
}

TEST(Scatters, StartFromNothingElse) {
  Table t;
  UOp storage = buffer(5, Dims{5, 4}, DType::F32);
  UOp computed = binary(Op::Mul, storage, storage);  // would have to be stored for it
  UOp sum = binary(Op::Add, t.wide, t.scatter);
  UOp difference = binary(Op::Sub, t.wide, t.scatter);
  for (const UOp& x : {binary(Op::Add, computed, t.scatter), difference}) EXPECT_EQ(started(x), x);
  EXPECT_EQ(start_scatters(std::span(&sum, 1), none)[0], sum) << "no library takes it";
  UOp roots[] = {sum, t.scatter};
  EXPECT_EQ(start_scatters(roots, all)[0], sum) << "somebody else reads the scatter";
}

}  // namespace
}  // namespace tinyshard
