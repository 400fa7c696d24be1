// Replacements stand for their nodes wherever these are read, also in other replacements.
#include "core/passes/replaced.h"

#include <gtest/gtest.h>

#include "tests/core/passes/same_values.h"

namespace tinyshard::replaced_test {
namespace {

using test::buffer;

struct Chain {
  UOp x = buffer(1, Dims{4, 6}, DType::F32);
  UOp first = unary(Op::Neg, x), second = unary(Op::Exp2, first), third = unary(Op::Sqrt, second);
  // The same values in other words.
  UOp negated = binary(Op::Sub, const_like(x, 0), x);
  UOp raised = unary(Op::Recip, unary(Op::Exp2, unary(Op::Neg, first)));
};

TEST(Replaced, NodesAreReadAsWhatStandsForThem) {
  Chain c;
  const std::vector<Replacement> found{{c.first, c.negated}, {c.second, c.raised}};
  const std::vector<UOp> after = replaced(std::vector{c.third, c.first}, found);
  EXPECT_EQ(after[1], c.negated);
  EXPECT_EQ(after[0], unary(Op::Sqrt, unary(Op::Recip, unary(Op::Exp2, unary(Op::Neg, c.negated)))))
      << print(after);
  test::expect_same({c.third}, {after[0]}, {c.x});
}

TEST(Replaced, TheFirstOfTwoForOneNodeCounts) {
  Chain c;
  const std::vector<Replacement> found{{c.first, c.negated}, {c.first, unary(Op::Sqrt, c.x)}};
  EXPECT_EQ(replaced(std::vector{c.first}, found)[0], c.negated);
}

TEST(Replaced, NothingIsReplacedByNothing) {
  Chain c;
  const std::vector<UOp> roots{c.third};
  EXPECT_EQ(replaced(roots, {}), roots);
}

TEST(Replaced, AReshapeOfAReshapeIsOne) {
  Chain c;
  const UOp flat = reshape(c.first, Dims{24}), other = reshape(c.x, Dims{6, 4});
  const std::vector<Replacement> found{{c.first, reshape(unary(Op::Neg, other), Dims{4, 6})}};
  EXPECT_EQ(replaced(std::vector{flat}, found)[0], reshape(unary(Op::Neg, other), Dims{24}));
}

}  // namespace
}  // namespace tinyshard::replaced_test
