#include "core/rewrite/pattern.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/options.h"

namespace tinyshard::pattern_test {
namespace {

UOp buffer(int64_t id) { return UOp::make(Op::Buffer, DType::F32, {}, Dims{id, 4}); }
UOp loop(int64_t id, int64_t size) { return range(id, size, RangeKind::Fold); }

TEST(Rewrite, AppliesRulesUntilNoneMatches) {
  RuleSet rules({
      {"double_neg", Op::Neg, op_set(Op::Neg), [](const UOp& x) { return x.src(0).src(0); }},
      {"sub",
       Op::Sub,
       {},
       [](const UOp& x) { return binary(Op::Add, x.src(0), unary(Op::Neg, x.src(1))); }},
  });
  UOp a = buffer(1), b = buffer(2);
  UOp x = binary(Op::Sub, a, unary(Op::Neg, unary(Op::Neg, unary(Op::Neg, b))));
  EXPECT_EQ(rewrite(x, rules), binary(Op::Add, a, b));
}

TEST(Rewrite, GivesTheSameNodeWhereNothingMatches) {
  RuleSet rules({{"never", Op::Add, {}, [](const UOp&) { return UOp(); }},
                 {"itself", Op::Mul, {}, [](const UOp& x) { return x; }}});
  UOp x = binary(Op::Add, binary(Op::Mul, buffer(1), buffer(2)), buffer(1));
  EXPECT_EQ(rewrite(x, rules), x);
}

TEST(Rewrite, TriesRulesOfOneOpInTheGivenOrder) {
  UOp a = buffer(1), b = buffer(2);
  RuleSet rules({{"first", Op::Neg, {}, [&](const UOp&) { return a; }},
                 {"second", Op::Neg, {}, [&](const UOp&) { return b; }}});
  EXPECT_EQ(rewrite(unary(Op::Neg, buffer(3)), rules), a);
}

TEST(Rewrite, SkipsRulesWhoseSourcesAreMissing) {
  int calls = 0;
  RuleSet rules({{"needs_mul_and_neg", Op::Add, op_set(Op::Mul, Op::Neg), [&](const UOp&) {
                    ++calls;
                    return UOp();
                  }}});
  UOp a = buffer(1), neg = unary(Op::Neg, a), mul = binary(Op::Mul, a, a);
  rewrite(binary(Op::Add, neg, a), rules);
  rewrite(binary(Op::Add, mul, mul), rules);
  EXPECT_EQ(calls, 0);
  rewrite(binary(Op::Add, mul, neg), rules);
  EXPECT_EQ(calls, 1);
}

TEST(Rewrite, VisitsSharedNodesOnce) {
  int calls = 0;
  RuleSet rules({{"count", Op::Add, {}, [&](const UOp&) {
                    ++calls;
                    return UOp();
                  }}});
  UOp x = buffer(1);
  for (int i = 0; i < 60; ++i) x = binary(Op::Add, x, x);  // 2^60 paths
  UOp roots[] = {x, x.src(0), x};
  rewrite(roots, rules);
  EXPECT_EQ(calls, 60);
}

TEST(Rewrite, VisitsASourceThatTwoNodesAreRewrittenToOnce) {
  int calls = 0;
  RuleSet rules({{"abs_like", Op::Neg, {}, [](const UOp& x) { return unary(Op::Sqrt, x.src(0)); }},
                 {"recip", Op::Recip, {}, [](const UOp& x) { return unary(Op::Sqrt, x.src(0)); }},
                 {"count", Op::Sqrt, {}, [&](const UOp&) {
                    ++calls;
                    return UOp();
                  }}});
  UOp a = buffer(1);
  UOp x = binary(Op::Add, unary(Op::Neg, a), unary(Op::Recip, a));
  UOp root = unary(Op::Sqrt, a);
  EXPECT_EQ(rewrite(x, rules), binary(Op::Add, root, root));
  EXPECT_EQ(calls, 1);
}

TEST(Rewrite, RewritesWhatTwoNodesBecomeOnce) {
  int calls = 0;
  RuleSet rules({{"exp", Op::Exp2, {}, [](const UOp& x) { return unary(Op::Sqrt, x.src(0)); }},
                 {"log", Op::Log2, {}, [](const UOp& x) { return unary(Op::Sqrt, x.src(0)); }},
                 {"count", Op::Neg, {}, [&](const UOp& x) {
                    ++calls;
                    return unary(Op::Sin, x.src(0));
                  }}});
  UOp a = buffer(1);
  UOp x = binary(Op::Add, unary(Op::Neg, unary(Op::Exp2, a)), unary(Op::Neg, unary(Op::Log2, a)));
  UOp both = unary(Op::Sin, unary(Op::Sqrt, a));
  EXPECT_EQ(rewrite(x, rules), binary(Op::Add, both, both));
  EXPECT_EQ(calls, 1);
}

TEST(Rewrite, SurvivesDeepGraphs) {
  RuleSet rules(
      {{"neg_to_sqrt", Op::Neg, {}, [](const UOp& x) { return unary(Op::Sqrt, x.src(0)); }}});
  UOp x = buffer(1);
  for (int i = 0; i < 200000; ++i) x = unary(i % 2 ? Op::Neg : Op::Exp2, x);
  UOp y = rewrite(x, rules);
  EXPECT_EQ(y.op(), Op::Sqrt);
  EXPECT_EQ(y.src(0).op(), Op::Exp2);
  EXPECT_EQ(toposort(std::span(&y, 1)).size(), 200001u);
}

TEST(Rewrite, NamesRulesThatNeverEnd) {
  RuleSet rules(
      {{"there", Op::Neg, {}, [](const UOp& x) { return unary(Op::Sqrt, x.src(0)); }},
       {"and_back", Op::Sqrt, {}, [](const UOp& x) { return unary(Op::Neg, x.src(0)); }}});
  EXPECT_THROW(rewrite(unary(Op::Neg, buffer(1)), rules), InternalError);
  RuleSet growing({{"grow", Op::Neg, {}, [](const UOp& x) {
                      return unary(Op::Neg, binary(Op::Add, x.src(0), x.src(0)));
                    }}});
  EXPECT_THROW(rewrite(unary(Op::Neg, buffer(1)), growing), InternalError);
}

TEST(Rewrite, ReleasesWhatItMade) {
  size_t before = live_nodes();
  {
    RuleSet rules({{"sub", Op::Sub, {}, [](const UOp& x) {
                      return binary(Op::Add, x.src(0), unary(Op::Neg, x.src(1)));
                    }}});
    UOp x = buffer(1);
    for (int i = 2; i < 50; ++i) x = binary(Op::Sub, x, buffer(i));
    EXPECT_EQ(rewrite(x, rules).op(), Op::Add);
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Rewrite, CountsMatchesWhenAsked) {
  setenv("DEBUG", "3", 1);
  reload_options();
  RuleSet rules(
      {{"b", Op::Sub, {}, [](const UOp& x) { return binary(Op::Add, x.src(0), x.src(1)); }},
       {"a", Op::Neg, {}, [](const UOp&) { return UOp(); }}});
  UOp a = buffer(1), b = buffer(2);
  rewrite(unary(Op::Neg, binary(Op::Sub, binary(Op::Sub, a, b), b)), rules);
  unsetenv("DEBUG");
  reload_options();
  rewrite(binary(Op::Sub, a, b), rules);  // not counted any more
  for (auto [rule, matches] : rules.counts()) EXPECT_EQ(matches, rule == "b" ? 2u : 0u) << rule;
}

TEST(RewriteOnce, LooksAtEachNodeButNotAtReplacements) {
  UOp a = buffer(1), x = unary(Op::Neg, unary(Op::Neg, a));
  auto wrap = [](const UOp& n) { return n.op() == Op::Neg ? unary(Op::Sqrt, n) : UOp(); };
  UOp inner = unary(Op::Sqrt, unary(Op::Neg, a));
  EXPECT_EQ(rewrite_once(std::span(&x, 1), wrap)[0], unary(Op::Sqrt, unary(Op::Neg, inner)));
}

TEST(Substitute, ReplacesAllAtOnce) {
  UOp a = buffer(1), b = buffer(2);
  NodeMap<UOp> swap;
  swap[a] = b;
  swap[b] = a;
  UOp x = binary(Op::Sub, a, binary(Op::Mul, b, a));
  EXPECT_EQ(substitute(x, swap), binary(Op::Sub, b, binary(Op::Mul, a, b)));
}

TEST(Substitute, FindsNodesByWhatTheyWereBefore) {
  UOp a = buffer(1), b = buffer(2), c = buffer(3);
  UOp neg = unary(Op::Neg, a);
  NodeMap<UOp> map;
  map[a] = b;
  map[neg] = c;  // wins over the replacement of its source
  EXPECT_EQ(substitute(binary(Op::Add, neg, a), map), binary(Op::Add, c, b));
}

TEST(Substitute, KeepsTheRangeListOfFolds) {
  UOp r1 = loop(1, 3), r2 = loop(2, 4), r3 = loop(3, 4);
  UOp value = cast(binary(Op::Add, r1, r2), DType::F32);
  UOp sum = UOp::make(Op::Fold, DType::F32, {value, r1, r2}, Dims{int64_t(ReduceOp::Sum)});
  NodeMap<UOp> map;
  map[r1] = index_const(0);
  map[r2] = r3;
  UOp expected = cast(binary(Op::Add, index_const(0), r3), DType::F32);
  EXPECT_EQ(substitute(sum, map),
            UOp::make(Op::Fold, DType::F32, {expected, r3}, Dims{int64_t(ReduceOp::Sum)}));
}

}  // namespace
}  // namespace tinyshard::pattern_test
