#include "core/rewrite/symbolic.h"

#include <limits>

#include <gtest/gtest.h>

#include "core/rewrite/affine.h"
#include "tests/core/rewrite/expressions.h"

namespace tinyshard::test::symbolic_test {
namespace {

// Both sides simplified: the expected side need not be written in canonical order.
#define EXPECT_SIMPLE(expression, expected)                          \
  do {                                                               \
    UOp input_ = (expression), result_ = simplify(input_);           \
    UOp wanted_ = simplify(UOp(expected));                           \
    EXPECT_TRUE(result_ == wanted_) << "from:\n"                     \
                                    << print(input_) << "to:\n"      \
                                    << print(result_) << "wanted:\n" \
                                    << print(wanted_);               \
    EXPECT_TRUE(simplify(result_) == result_);                       \
  } while (false)

UOp param(int64_t slot) { return UOp::make(Op::Param, DType::F32, {}, Dims{slot}); }
UOp load(DType d, int64_t slot, const UOp& index) {
  return UOp::make(Op::Load, d, {UOp::make(Op::Param, d, {}, Dims{slot}), index});
}
UOp load_if(int64_t slot, const UOp& index, const UOp& valid) {
  return UOp::make(Op::Load, DType::F32, {param(slot), index, valid});
}

const E a = r(0, 5), b = r(1, 4), c = r(2, 3), big = r(3, 1000);
const UOp yes = const_int(DType::Bool, 1), no = const_int(DType::Bool, 0);

// --- sums ----------------------------------------------------------------------------------------

TEST(Sums, AreCanonical) {
  EXPECT_EQ(simplify(a + b), simplify(b + a));
  EXPECT_EQ(simplify((a + b) + (c + 7)), simplify(7 + (b + (c + a))));
  EXPECT_EQ(simplify(a * 2 + b * 12), simplify(b * 12 + a * 2));
  EXPECT_SIMPLE(a + a + a, a * 3);
  EXPECT_SIMPLE(a * 3 - a - a * 2, E(0));
  EXPECT_SIMPLE((a + b) * 3 - (b + a) * 2, a + b);
  EXPECT_SIMPLE(-(a - b), b - a);
  EXPECT_SIMPLE((a + 3) * 4 - 12, a * 4);
  EXPECT_EQ(count(simplify(a - b - 3), {Op::Sub, Op::Neg}), 0u);
}

TEST(Sums, WriteLargerFactorsFirst) {
  UOp x = simplify(a + b * 20 + 7 + c * 5);
  ASSERT_EQ(x.op(), Op::Add);
  EXPECT_TRUE(is_const(x.src(1), 7));
  EXPECT_EQ(x.src(0).src(1), a.u);
  EXPECT_EQ(x.src(0).src(0).src(0), binary(Op::Mul, b.u, k(20)));
}

TEST(Sums, ARangeOfOneIsZero) {
  EXPECT_SIMPLE(E(r(9, 1)) + a, a);
  UOp empty = r(9, 0);  // its loop must not run
  EXPECT_EQ(simplify(empty), empty);
}

TEST(Sums, LeaveOverflowAlone) {
  int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  UOp x = (a * huge) * 3;
  EXPECT_EQ(simplify(x).op(), Op::Mul);
}

// --- division ------------------------------------------------------------------------------------

TEST(Division, TakesOutWholeMultiples) {
  EXPECT_SIMPLE((a * 4 + b) / 4, a);
  EXPECT_SIMPLE((a * 4 + b) % 4, b);
  EXPECT_SIMPLE((a * 8 + big) / 4, a * 2 + big / 4);
  EXPECT_SIMPLE((a * 8 + big) % 4, big % 4);
  EXPECT_SIMPLE((big + 11) / 4, (big + 3) / 4 + 2);
  EXPECT_SIMPLE(a / 5, E(0));
  EXPECT_SIMPLE(a % 5, a);
  EXPECT_SIMPLE((a + 5) / 5, E(1));
  EXPECT_SIMPLE((a - 5) / 5, E(-1));
  EXPECT_SIMPLE((a - 5) % 5, a);
  EXPECT_SIMPLE(a / 1, a);
  EXPECT_SIMPLE(a % 1, E(0));
}

TEST(Division, CancelsCommonFactors) {
  EXPECT_SIMPLE((big * 6) / 4, (big * 3) / 2);
  EXPECT_SIMPLE((big * 6) % 4, (big % 2) * 2);
  EXPECT_SIMPLE((big * 6 + 5) / 4, (big * 3 + 2) / 2);
  EXPECT_SIMPLE((big * 6 + 1) % 4, (big % 2) * 2 + 1);
  EXPECT_SIMPLE((big * 4 + b) / 8, big / 2);
  EXPECT_SIMPLE((big * 4 + b) % 8, (big % 2) * 4 + b);
  EXPECT_SIMPLE((big * 12 + b * 3 + c) / 24, big / 2);
  EXPECT_SIMPLE((big * 12 + b * 3 + c) % 24, (big % 2) * 12 + b * 3 + c);
}

TEST(Division, Nests) {
  EXPECT_SIMPLE((big / 3) / 4, big / 12);
  EXPECT_SIMPLE((big / 3 + 2) / 4, (big + 6) / 12);
  EXPECT_SIMPLE((big % 12) % 4, big % 4);
  EXPECT_SIMPLE((big % 12) / 4, (big / 4) % 3);
  EXPECT_SIMPLE((a + big / 3) / 4, (a * 3 + big) / 12);
}

TEST(Division, GoesTogetherAgain) {
  EXPECT_SIMPLE((big / 7) * 7 + big % 7, big);
  EXPECT_SIMPLE((big / 12) * 12 + (big / 4 % 3) * 4 + big % 4, big);
  EXPECT_SIMPLE((big / 4 % 3) * 4 + big % 4, big % 12);
  EXPECT_SIMPLE(((big + a) / 7) * 14 + ((big + a) % 7) * 2 + b, (big + a) * 2 + b);
  EXPECT_SIMPLE((999 - big) / 7 * 7 + (999 - big) % 7, 999 - big);
  EXPECT_SIMPLE((big * 5 / 4) * 4 + (big * 5) % 4, big * 5);
}

TEST(Division, TurnsFlippedIndicesRound) {
  EXPECT_SIMPLE((999 - big) / 4, 249 - big / 4);
  EXPECT_SIMPLE((999 - big) % 4, 3 - big % 4);
  E t = r(4, 12);
  EXPECT_SIMPLE((11 - t) / 4, 2 - t / 4);
}

TEST(Division, SeesThatAlmostAWholeMultipleIsAStepBack) {
  E t = r(6, 2);
  EXPECT_SIMPLE((t * 3 + 1) / 4, t);
  EXPECT_SIMPLE((t * 3 + 1) % 4, 1 - t);
}

TEST(Division, ByNegativeAndUnknownNumbers) {
  EXPECT_SIMPLE(big / -4, (-big) / 4);
  EXPECT_SIMPLE(big % -4, -((-big) % 4));
  EXPECT_SIMPLE(a / (b + 5), E(0));
  EXPECT_SIMPLE(a % (b + 5), a);
  EXPECT_SIMPLE((b + 5) / (b + 5), E(1));
  UOp by_zero = a / 0;
  EXPECT_EQ(simplify(by_zero), by_zero);
}

TEST(Division, UsesWhatIsKnownOfLoadedIndices) {
  E byte = cast(load(DType::U8, 0, a), DType::Index);
  EXPECT_SIMPLE(byte / 256, E(0));
  EXPECT_SIMPLE(byte % 256, byte);
  E word = cast(load(DType::I32, 0, a), DType::Index);
  EXPECT_SIMPLE((word * 64 + big % 64) / 64, word);
  EXPECT_EQ(simplify(word / 64).op(), Op::IDiv);
  E wide = cast(cast(load(DType::U8, 0, a), DType::I64), DType::Index);
  EXPECT_SIMPLE(wide / 256, E(0));
}

TEST(Minmax, FoldsByBounds) {
  EXPECT_SIMPLE(max(a, E(-1)), a);
  EXPECT_SIMPLE(max(a, E(7)), E(7));
  EXPECT_SIMPLE(max(a + b, a), a + b);
  EXPECT_EQ(simplify(max(a, E(2))), binary(Op::Max, a, k(2)));
  EXPECT_SIMPLE(max(a, E(2)) / 5, E(0));
}

// --- comparisons and conditions ------------------------------------------------------------------

TEST(Comparisons, FoldByBounds) {
  EXPECT_SIMPLE(a < 5, yes);
  EXPECT_SIMPLE(a < 0, no);
  EXPECT_SIMPLE(a < b + 5, yes);
  EXPECT_SIMPLE(a + 4 < b, no);
  EXPECT_SIMPLE(a == 7, no);
  EXPECT_SIMPLE(a != 7, yes);
  EXPECT_SIMPLE(a == a, yes);
  EXPECT_SIMPLE(a * 2 == 3, no);
  EXPECT_SIMPLE(a * 4 + b * 2 != 3, yes);
}

TEST(Comparisons, LoseCommonFactorsAndDivisions) {
  EXPECT_SIMPLE(big * 4 < 10, big < 3);
  EXPECT_SIMPLE(big * 4 + b < 12, big < 3);
  EXPECT_SIMPLE(big * 4 + c < 11, big < 3);  // c < 3
  EXPECT_SIMPLE(big / 4 < 3, big < 12);
  EXPECT_SIMPLE(3 < big / 4, 15 < big);
  EXPECT_SIMPLE(a * 4 < 4 + a * 3 + b, a < b + 4);
  EXPECT_SIMPLE(big * 6 == 12, big == 2);
  EXPECT_EQ(simplify(3 < big), simplify(-big < -3));
  EXPECT_EQ(divisions(simplify((big + 3) / 4 + a < 3)), 0u);
}

TEST(Comparisons, HaveAnOpposite) {
  EXPECT_SIMPLE(negate(big < 4), 3 < big);
  EXPECT_SIMPLE(negate(3 < big), big < 4);
  EXPECT_SIMPLE(negate(big == 3), big != 3);
  EXPECT_SIMPLE(negate(negate(big < 4)), big < 4);
}

TEST(Conditions, DropWhatFollows) {
  EXPECT_SIMPLE((big < 5) & (big < 8), big < 5);
  EXPECT_SIMPLE((2 < big) & (big < 4), big == 3);
  EXPECT_SIMPLE((5 < big) & (big < 4), no);
  EXPECT_SIMPLE((big < 5) & (big < 5), big < 5);
  EXPECT_SIMPLE((big < 2) & (big + b < 9), big < 2);
  EXPECT_SIMPLE((big < 2) & (40 < big + b), no);
  EXPECT_SIMPLE((big == 3) & (big < 5), big == 3);
  EXPECT_SIMPLE((big == 3) & (big == 4), no);
  EXPECT_SIMPLE((big < 5) & (a < 3) & (big < 7) & (a < 4), (a < 3) & (big < 5));
  EXPECT_SIMPLE((big < 5) & negate(big < 5), no);
  EXPECT_SIMPLE((big < 5) | negate(big < 5), yes);
  EXPECT_SIMPLE((big < 5) | ((big < 5) & (a < 3)), big < 5);
  E flag = load(DType::Bool, 0, a);
  EXPECT_SIMPLE(flag & flag, flag);
  EXPECT_SIMPLE(flag & negate(flag), no);
  EXPECT_SIMPLE(flag & yes, flag);
  EXPECT_SIMPLE(flag | no, flag);
  EXPECT_SIMPLE(flag == E(yes), flag);
  EXPECT_SIMPLE(flag != E(yes), negate(flag));
  EXPECT_EQ(simplify((big < 5) & (a < 3)), simplify((a < 3) & (big < 5)));
}

TEST(Conditions, OfIntegersThatAreIndices) {
  E i = cast(a, DType::I32), j = cast(b, DType::I32), n = const_int(DType::I32, 9);
  EXPECT_SIMPLE(i < n, yes);
  EXPECT_SIMPLE(i < j, a < b);
  EXPECT_SIMPLE(i + j == n, no);
  // An arange that wraps is not an index.
  E narrow = cast(big, DType::U8), five = const_int(DType::U8, 5);
  EXPECT_EQ(simplify(narrow < five).src(0), narrow.u);
}

TEST(Where, FollowsItsCondition) {
  E x = load(DType::F32, 0, a), y = load(DType::F32, 1, a), zero = const_float(DType::F32, 0);
  E valid = 1 < big, other = a < 3;
  EXPECT_SIMPLE(select(yes, x, y), x);
  EXPECT_SIMPLE(select(no, x, y), y);
  EXPECT_SIMPLE(select(valid, x, x), x);
  E flag = load(DType::Bool, 2, a);
  EXPECT_SIMPLE(select(negate(flag == E(yes)), x, y), select(flag, y, x));
  EXPECT_SIMPLE(select(valid, select(other, x, zero), zero), select(valid & other, x, zero));
  EXPECT_SIMPLE(select(valid, select(valid, x, y), zero), select(valid, x, zero));
  EXPECT_SIMPLE(select(valid, x, select(valid, zero, y)), select(valid, x, y));
  EXPECT_SIMPLE(select(valid, E(yes), E(no)), valid);
  EXPECT_SIMPLE(select(valid, E(no), E(yes)), negate(valid));
  EXPECT_SIMPLE(select(valid, other, E(no)), valid & other);
  EXPECT_SIMPLE(select(negate(flag), a, big), select(flag, big, a));
  EXPECT_SIMPLE(select(other, a + 1, 1 + a), a + 1);
  EXPECT_SIMPLE(select(other, a, E(3)) / 5, E(0));
}

TEST(Loads, LoseValidityAndGainKnowledge) {
  EXPECT_SIMPLE(load_if(0, a, a < 5), UOp::make(Op::Load, DType::F32, {param(0), a.u}));
  EXPECT_SIMPLE(load_if(0, a, a < 0), const_float(DType::F32, 0));
  // Within the pad the row is the row of the source.
  E t = r(5, 16), shifted = t - 2, valid = (1 < t) & (t < 14);
  UOp x = simplify(load_if(0, (shifted / 12) * 100 + shifted % 12, valid));
  EXPECT_EQ(x.src(1), simplify(shifted));
  EXPECT_EQ(x.src(2), simplify(valid));
  // A mask around a masked load says nothing new.
  UOp masked = load_if(0, shifted, valid);
  EXPECT_SIMPLE(select(1 < t, masked, E(const_float(DType::F32, 0))), masked);
  UOp kept = simplify(select(a < 3, masked, E(const_float(DType::F32, 0))));
  EXPECT_EQ(kept.op(), Op::Where);
}

// A gather inside of a pad: code loads the gathered index everywhere, so that it has to stay
// guarded although it counts only where the load around it happens.
TEST(Loads, OfAnIndexKeepTheirOwnGuard) {
  E t = r(5, 16), valid = (1 < t) & (t < 14);
  const auto integer = [](const E& at, const E& where) {
    return UOp::make(Op::Load, DType::I32,
                     {UOp::make(Op::Param, DType::I32, {}, Dims{1}), at.u, where.u});
  };
  for (const UOp& inner : {integer(t - 2, valid), integer((t - 2) % 12, valid)}) {
    E place(cast(inner, DType::Index));
    UOp x = simplify(load_if(0, (place * 12 + t - 2) / 12, valid & (place < 4)));
    int loads = 0;
    for (const UOp& node : toposort({&x, 1})) {
      if (node.op() != Op::Load) continue;
      ++loads;
      EXPECT_EQ(node->sources, 3) << print(x);
      if (node.dtype() == DType::I32) {
        EXPECT_EQ(node.src(2), simplify(valid)) << print(x);
      }
    }
    EXPECT_GE(loads, 2);
  }
}

TEST(Given, NarrowsSumsAndDecidesParts) {
  E t = r(5, 16);
  EXPECT_EQ(simplify_given((t - 2) / 12, (1 < t) & (t < 14)), k(0));
  EXPECT_EQ(simplify_given(t % 4, t < 4), t.u);
  EXPECT_EQ(simplify_given(t * 3, t == 2), k(6));
  EXPECT_EQ(simplify_given((big + b) / 10, big + b < 10), k(0));
  EXPECT_EQ(simplify_given((big * 2 + b * 2 + c) / 24, big + b < 10), k(0));
  EXPECT_EQ(simplify_given(select(t < 9, t, big), t < 4), t.u);
  E flag = load(DType::Bool, 0, a);
  EXPECT_EQ(simplify_given(select(flag, t, big), flag), t.u);
  EXPECT_EQ(simplify_given(select(negate(flag), t, big), flag & (t < 3)), big.u);
}

// --- values --------------------------------------------------------------------------------------

TEST(Floats, KeepEveryBit) {
  UOp x = load(DType::F32, 0, a), y = load(DType::F32, 1, a);
  auto f = [](double v) { return const_float(DType::F32, v); };
  EXPECT_SIMPLE(binary(Op::Mul, x, f(1)), x);
  EXPECT_SIMPLE(binary(Op::Mul, f(1), x), x);
  EXPECT_SIMPLE(binary(Op::Add, x, f(-0.0)), x);
  EXPECT_SIMPLE(binary(Op::Sub, x, f(0)), x);
  EXPECT_SIMPLE(binary(Op::Div, x, f(1)), x);
  EXPECT_SIMPLE(binary(Op::Div, x, f(8)), binary(Op::Mul, x, f(0.125)));
  EXPECT_SIMPLE(unary(Op::Neg, unary(Op::Neg, x)), x);
  EXPECT_SIMPLE(binary(Op::Mul, x, f(-1)), unary(Op::Neg, x));
  EXPECT_SIMPLE(binary(Op::Add, x, unary(Op::Neg, y)), binary(Op::Sub, x, y));
  EXPECT_SIMPLE(binary(Op::Sub, x, unary(Op::Neg, y)), binary(Op::Add, x, y));
  EXPECT_SIMPLE(binary(Op::Max, x, x), x);
  EXPECT_SIMPLE(binary(Op::Max, x, f(-std::numeric_limits<double>::infinity())), x);
  EXPECT_SIMPLE(binary(Op::Div, f(1), x), unary(Op::Recip, x));
  EXPECT_SIMPLE(binary(Op::CmpLt, x, x), no);
  // These would lose NaN, infinity, the sign of a zero or a rounding.
  for (const UOp& same : {binary(Op::Add, x, f(0)), binary(Op::Sub, x, f(-0.0)),
                          binary(Op::Mul, x, f(0)), binary(Op::Sub, x, x), binary(Op::Div, x, f(3)),
                          binary(Op::Div, x, x), binary(Op::CmpNe, x, x), binary(Op::CmpEq, x, x),
                          binary(Op::Add, binary(Op::Add, x, f(1)), f(2)),
                          binary(Op::Mul, binary(Op::Mul, x, f(3)), f(5)),
                          binary(Op::Sub, binary(Op::Add, x, y), y)}) {
    EXPECT_EQ(simplify(same), same) << print(same);
  }
  EXPECT_EQ(simplify(unary(Op::Not, binary(Op::CmpLt, x, y))).op(), Op::Not) << "x >= y is not it";
}

TEST(Integers, WrapAndCancel) {
  UOp x = load(DType::I32, 0, a), y = load(DType::I32, 1, a);
  auto i = [](int64_t v) { return const_int(DType::I32, v); };
  EXPECT_SIMPLE(binary(Op::Mul, x, i(0)), i(0));
  EXPECT_SIMPLE(binary(Op::Sub, x, x), i(0));
  EXPECT_SIMPLE(binary(Op::Xor, x, x), i(0));
  EXPECT_SIMPLE(binary(Op::And, x, i(-1)), x);
  EXPECT_SIMPLE(binary(Op::And, x, i(0)), i(0));
  EXPECT_SIMPLE(binary(Op::Or, x, i(0)), x);
  EXPECT_SIMPLE(binary(Op::IDiv, x, i(1)), x);
  EXPECT_SIMPLE(binary(Op::IDiv, x, i(0)), i(0));
  EXPECT_SIMPLE(binary(Op::Mod, x, i(1)), i(0));
  EXPECT_SIMPLE(binary(Op::Shl, x, i(0)), x);
  EXPECT_SIMPLE(binary(Op::Add, binary(Op::Add, x, i(3)), i(4)), binary(Op::Add, x, i(7)));
  EXPECT_SIMPLE(binary(Op::Mul, binary(Op::Mul, x, i(1 << 20)), i(1 << 12)), i(0));
  EXPECT_SIMPLE(binary(Op::Sub, binary(Op::Add, x, i(3)), i(3)), x);
  EXPECT_SIMPLE(binary(Op::Max, x, i(std::numeric_limits<int32_t>::min())), x);
  EXPECT_SIMPLE(binary(Op::CmpEq, x, x), yes);
  EXPECT_SIMPLE(binary(Op::CmpLt, x, i(std::numeric_limits<int32_t>::min())), no);
  EXPECT_SIMPLE(unary(Op::Not, unary(Op::Not, x)), x);
  UOp u = load(DType::U64, 2, a);
  EXPECT_SIMPLE(binary(Op::CmpLt, u, const_int(DType::U64, 0)), no);
  EXPECT_SIMPLE(binary(Op::CmpLt, const_int(DType::U64, -1), u), no);
  EXPECT_EQ(simplify(binary(Op::IDiv, x, y)), binary(Op::IDiv, x, y));
  EXPECT_EQ(simplify(binary(Op::Mod, binary(Op::Mod, x, i(12)), i(4))),
            binary(Op::Mod, binary(Op::Mod, x, i(12)), i(4)))
      << "loaded numbers may be negative";
}

TEST(Integers, MadeOfIndicesAreIndices) {
  auto i32 = [](const UOp& x) { return cast(x, DType::I32); };
  auto i = [](int64_t v) { return const_int(DType::I32, v); };
  EXPECT_SIMPLE(binary(Op::Add, binary(Op::Mul, i32(a), i(4)), i32(b)), i32(a * 4 + b));
  EXPECT_SIMPLE(binary(Op::IDiv, binary(Op::Add, binary(Op::Mul, i32(a), i(4)), i32(b)), i(4)),
                i32(a));
  EXPECT_SIMPLE(binary(Op::Sub, i32(a), i32(a)), i(0));
  EXPECT_SIMPLE(cast(i32(a), DType::Index), a);
  // -7 / 2 truncates, so the floor of Index must not be used.
  UOp negative = binary(Op::IDiv, binary(Op::Sub, i32(a), i(7)), i(2));
  EXPECT_EQ(simplify(negative).op(), Op::IDiv);
  EXPECT_EQ(simplify(negative).dtype(), DType::I32);
  // u8 arithmetic wraps at 256, Index does not.
  UOp wraps = binary(Op::Mul, cast(r(7, 200), DType::U8), const_int(DType::U8, 2));
  EXPECT_EQ(simplify(wraps), wraps);
}

TEST(Casts, GoWhenNothingIsLost) {
  UOp i8 = load(DType::I8, 0, a), i32 = load(DType::I32, 1, a), f32 = load(DType::F32, 2, a),
      f16 = load(DType::F16, 3, a), flag = load(DType::Bool, 4, a), i64 = load(DType::I64, 5, a);
  auto via = [](const UOp& x, DType middle, DType to) {
    return UOp::make(Op::Cast, to, {UOp::make(Op::Cast, middle, {x})});
  };
  EXPECT_SIMPLE(via(i8, DType::I32, DType::I8), i8);
  EXPECT_SIMPLE(via(i8, DType::I32, DType::I64), cast(i8, DType::I64));
  EXPECT_SIMPLE(via(i8, DType::F32, DType::F64), cast(i8, DType::F64));
  EXPECT_SIMPLE(via(f16, DType::F32, DType::F16), f16);
  EXPECT_SIMPLE(via(flag, DType::F32, DType::I32), cast(flag, DType::I32));
  EXPECT_SIMPLE(via(flag, DType::F16, DType::Bool), flag);
  EXPECT_SIMPLE(via(i64, DType::I32, DType::I8), cast(i64, DType::I8));
  EXPECT_SIMPLE(UOp::make(Op::Cast, DType::F32, {f32}), f32);
  EXPECT_SIMPLE(binary(Op::CmpNe, cast(flag, DType::F32), const_float(DType::F32, 0)), flag);
  EXPECT_SIMPLE(binary(Op::CmpEq, cast(flag, DType::I32), const_int(DType::I32, 1)), flag);
  for (const UOp& same :
       {via(f32, DType::F16, DType::F32), via(i32, DType::F32, DType::I32),
        via(f32, DType::I32, DType::F32), via(i32, DType::I8, DType::I32),
        via(i32, DType::F64, DType::U8),  // the float saturates, the integer would wrap
        via(i32, DType::Bool, DType::I32)}) {
    EXPECT_EQ(simplify(same), same) << print(same);
  }
}

TEST(Folds, LoseRangesOfOne) {
  UOp one = range(10, 1, RangeKind::Fold), ten = range(11, 10, RangeKind::Fold);
  Dims sum{int64_t(ReduceOp::Sum)};
  UOp x = load(DType::F32, 0, a + E(one) * 7 + ten);
  UOp without = load(DType::F32, 0, simplify(a + ten));
  EXPECT_EQ(simplify(UOp::make(Op::Fold, DType::F32, {x, one, ten}, sum)),
            UOp::make(Op::Fold, DType::F32, {without, ten}, sum));
  EXPECT_EQ(simplify(UOp::make(Op::Fold, DType::F32, {load(DType::F32, 0, a + E(one)), one}, sum)),
            load(DType::F32, 0, a));
}

TEST(Shapes, OfTensorLevelConstantsAreKept) {
  UOp x = UOp::make(Op::Buffer, DType::F32, {}, Dims{1, 2, 3});
  UOp one = const_float(DType::F32, 1, Dims{2, 3});
  EXPECT_EQ(simplify(binary(Op::Mul, x, one)), x);
  EXPECT_EQ(simplify(binary(Op::Add, one, one)), const_float(DType::F32, 2, Dims{2, 3}));
  EXPECT_EQ(simplify(binary(Op::CmpLt, x, x)), const_int(DType::Bool, 0, Dims{2, 3}));
  UOp flag = binary(Op::CmpLt, x, one), all = const_int(DType::Bool, 1, Dims{2, 3});
  EXPECT_EQ(simplify(binary(Op::And, flag, all)), flag);
}

TEST(Simplifier, SurvivesDepthAndReleasesAll) {
  size_t before = live_nodes();
  {
    E x = a;
    UOp y = load(DType::F32, 0, b);
    for (int i = 0; i < 100000; ++i) {
      x = x + (i % 2 ? b : c);
      y = unary(i % 2 ? Op::Sqrt : Op::Exp2, y);
    }
    EXPECT_EQ(simplify(x), simplify(a + b * 50000 + c * 50000));
    EXPECT_EQ(simplify(y), y);
    UOp nested = a + 1000;
    for (int i = 0; i < 20000; ++i) nested = max(nested % 1999 + big, E(i % 7));
    simplify(nested);
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Simplifier, RemembersAcrossCalls) {
  Simplifier simplifier;
  UOp x = (big / 7) * 7 + big % 7;
  EXPECT_EQ(simplifier(x), big.u);
  EXPECT_EQ(simplifier(x), big.u);
  UOp roots[] = {x, a + 0, x};
  EXPECT_EQ(simplifier(roots), (std::vector<UOp>{big, a, big}));
  for (int i = 0; i < 1000; ++i)
    simplifier(E(i) + big);  // inputs are dropped, addresses come again
  EXPECT_EQ(simplifier(big + 17), simplify(big + 17));
}

}  // namespace
}  // namespace tinyshard::test::symbolic_test
