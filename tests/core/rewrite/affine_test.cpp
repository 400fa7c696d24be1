#include "core/rewrite/affine.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/rewrite/symbolic.h"
#include "core/uop/args.h"
#include "tests/core/rewrite/expressions.h"

namespace tinyshard::test::affine_test {
namespace {

UOp param(int64_t slot) { return UOp::make(Op::Param, DType::F32, {}, Dims{slot}); }
UOp load(int64_t slot, const UOp& index) {
  return UOp::make(Op::Load, DType::F32, {param(slot), index});
}
UOp store(int64_t slot, const UOp& index, const UOp& value) {
  return UOp::make(Op::Store, DType::F32, {param(slot), index, value});
}
UOp sum(const UOp& value, std::initializer_list<UOp> ranges) {
  std::vector<UOp> src{value};
  src.insert(src.end(), ranges);
  return UOp::make(Op::Fold, DType::F32, src, Dims{int64_t(ReduceOp::Sum)});
}
UOp fold_range(int64_t id, int64_t size) { return range(id, size, RangeKind::Fold); }

size_t all_divisions(const LoopNest& nest) {
  size_t n = 0;
  for (const UOp& root : nest.roots) n += divisions(root);
  return n;
}

// The values that a kernel of one store writes, by address: the check that loops may be renamed but
// do the same. Loads give their address.
std::map<int64_t, double> written(const UOp& root, const std::vector<UOp>& ranges) {
  std::map<int64_t, double> memory;
  std::vector<UOp> loops, folds;
  for (const UOp& x : ranges) (range_arg(*x).kind == RangeKind::Loop ? loops : folds).push_back(x);
  auto element = [](int64_t slot, int64_t index) {
    return const_float(DType::F32, static_cast<double>(100 * slot + index));
  };
  for_each_point(loops, [&](const Point& point) {
    Evaluator outside(point, element);
    int64_t address = outside.integer(root.src(1));
    const UOp& value = root.src(2);
    double total = 0;
    if (value.op() != Op::Fold) {
      total = const_as_double(outside.value(value));
    } else {
      std::vector<UOp> inner(value->src().begin() + 1, value->src().end());
      for_each_point(inner, [&](const Point& within) {
        Point both = point;
        both.insert(within.begin(), within.end());
        total += const_as_double(Evaluator(both, element).value(value.src(0)));
      });
    }
    EXPECT_FALSE(memory.contains(address));
    memory[address] = total;
  });
  return memory;
}

TEST(Affine, ReadsStrides) {
  E a = r(0, 5), b = r(1, 4), c = r(2, 3);
  auto affine = as_affine(simplify((a * 4 + b) * 3 + c + 7));
  ASSERT_TRUE(affine);
  EXPECT_EQ(affine->constant, 7);
  ASSERT_EQ(affine->terms.size(), 3u);
  EXPECT_EQ(affine->terms[0].range, a.u);
  EXPECT_EQ(affine->coefficient(a), 12);
  EXPECT_EQ(affine->coefficient(b), 3);
  EXPECT_EQ(affine->coefficient(c), 1);
  EXPECT_EQ(affine->coefficient(r(8, 2)), 0);
  // As written, too: sums need not be simplified.
  auto written = as_affine(UOp(2 * a - (b - a) - E(-c)));
  ASSERT_TRUE(written);
  EXPECT_EQ(written->coefficient(a), 3);
  EXPECT_EQ(written->coefficient(b), -1);
  EXPECT_EQ(written->coefficient(c), 1);
  EXPECT_TRUE(as_affine(k(4))->terms.empty());
  EXPECT_TRUE(as_affine(a - a)->terms.empty());
  EXPECT_FALSE(as_affine(a / 2));
  EXPECT_FALSE(as_affine(a * b));
}

TEST(Affine, StrideOfOneRange) {
  E a = r(0, 5), b = r(1, 40), c = r(2, 3);
  UOp x = b / 7 * 12 + a * 4 + c;
  EXPECT_EQ(stride(x, a), 4);
  EXPECT_EQ(stride(x, c), 1);
  EXPECT_EQ(stride(x, b), std::nullopt);
  EXPECT_EQ(stride(x, r(9, 9)), 0);
  EXPECT_EQ(stride(a % 3 + a, a), std::nullopt);
}

TEST(SplitRanges, RemovesDivisionsOfALoop) {
  E i = r(0, 12);
  UOp root = store(0, i, load(1, i % 4 * 3 + i / 4));
  LoopNest nest = split_ranges(std::span(&root, 1), std::vector<UOp>{i});
  ASSERT_EQ(nest.ranges.size(), 2u);
  EXPECT_EQ(range_arg(*nest.ranges[0]).size, 3);
  EXPECT_EQ(range_arg(*nest.ranges[1]).size, 4);
  EXPECT_EQ(all_divisions(nest), 0u);
  EXPECT_EQ(written(root, {i}), written(nest.roots[0], nest.ranges));
}

TEST(SplitRanges, GoesOnWithFurtherDivisors) {
  E i = r(0, 24), j = r(7, 2);
  UOp root = store(0, i * 2 + j, load(1, (i % 4) * 6 + (i / 4 % 3) * 2 + i / 12 + j * 24));
  LoopNest nest = split_ranges(std::span(&root, 1), std::vector<UOp>{i, j});
  ASSERT_EQ(nest.ranges.size(), 4u);
  EXPECT_EQ(range_arg(*nest.ranges[0]).size, 2);
  EXPECT_EQ(range_arg(*nest.ranges[1]).size, 3);
  EXPECT_EQ(range_arg(*nest.ranges[2]).size, 4);
  EXPECT_EQ(nest.ranges[3], j.u) << "others keep their place";
  EXPECT_EQ(all_divisions(nest), 0u);
  EXPECT_EQ(written(root, {i, j}), written(nest.roots[0], nest.ranges));
}

TEST(SplitRanges, SplitsTheRangesOfFolds) {
  E i = r(0, 4);
  UOp f = fold_range(1, 6), g = fold_range(2, 2);
  UOp root = store(0, i, sum(load(1, i * 12 + E(f) / 3 + E(f) % 3 * 2 + E(g) * 6), {g, f}));
  LoopNest nest = split_ranges(std::span(&root, 1), std::vector<UOp>{i, g, f});
  ASSERT_EQ(nest.ranges.size(), 4u);
  EXPECT_EQ(all_divisions(nest), 0u);
  const UOp& fold = nest.roots[0].src(2);
  ASSERT_EQ(fold->sources, 4u);
  EXPECT_EQ(fold.src(1), g);
  EXPECT_EQ(fold.src(2), nest.ranges[2]);
  EXPECT_EQ(fold.src(3), nest.ranges[3]);
  EXPECT_EQ(range_arg(*fold.src(2)).kind, RangeKind::Fold);
  EXPECT_EQ(written(root, {i, g, f}), written(nest.roots[0], nest.ranges));
}

TEST(SplitRanges, LeavesWhatDoesNotFit) {
  E i = r(0, 12), j = r(1, 10);
  UOp roots[] = {store(0, i, load(1, i / 4 + i % 6 * 10)),  // 4 and 6
                 store(0, j, load(1, j / 4 + j % 4))};      // 4 does not divide 10
  LoopNest nest = split_ranges(roots, std::vector<UOp>{i, j});
  EXPECT_EQ(nest.ranges, (std::vector<UOp>{i, j}));
}

TEST(SplitRanges, CutsBetweenThePartsOfAConcatenation) {
  E i = r(0, 48);
  UOp first = UOp::make(Op::Load, DType::F32, {param(1), i.u, (i < 16).u});
  UOp second = UOp::make(Op::Load, DType::F32, {param(2), (i - 16).u, (E(index_const(15)) < i).u});
  UOp root = store(0, i, binary(Op::Add, first, second));
  LoopNest nest = split_ranges(std::span(&root, 1), std::vector<UOp>{i});
  ASSERT_EQ(nest.ranges.size(), 2u);
  EXPECT_EQ(range_arg(*nest.ranges[0]).size, 3);
  EXPECT_EQ(range_arg(*nest.ranges[1]).size, 16);
  for (const UOp& x : toposort(nest.roots)) {
    if (x.op() != Op::CmpLt && x.op() != Op::CmpEq) continue;
    std::vector<UOp> below = toposort(std::span(&x, 1));
    EXPECT_EQ(std::ranges::find(below, nest.ranges[1]), below.end()) << describe(*x);
  }
  // Parts too short to be worth a loop.
  E j = r(0, 12);
  UOp few = store(0, j, UOp::make(Op::Load, DType::F32, {param(1), j.u, (j < 4).u}));
  EXPECT_EQ(split_ranges(std::span(&few, 1), std::vector<UOp>{j}).ranges, std::vector<UOp>{j});
}

TEST(MergeRanges, JoinsNeighboursThatCountOn) {
  E i = r(0, 3), j = r(1, 4), l = r(2, 5);
  UOp root = store(0, (i * 4 + j) * 5 + l, load(1, (i * 4 + j) * 5 + l + 3));
  LoopNest nest = merge_ranges(std::span(&root, 1), std::vector<UOp>{i, j, l});
  ASSERT_EQ(nest.ranges.size(), 1u);
  EXPECT_EQ(range_arg(*nest.ranges[0]).size, 60);
  EXPECT_EQ(nest.roots[0].src(1), nest.ranges[0]);
  EXPECT_EQ(written(root, {i, j, l}), written(nest.roots[0], nest.ranges));
}

TEST(MergeRanges, KeepsStridesAndBroadcasts) {
  E i = r(0, 3), j = r(1, 4), l = r(2, 5);
  // l is broadcast into slot 1; i and j count on everywhere, by twos in slot 2.
  UOp value = binary(Op::Add, load(1, i * 4 + j), load(2, (i * 4 + j) * 2 + l * 100));
  UOp root = store(0, (i * 4 + j) * 5 + l, value);
  LoopNest nest = merge_ranges(std::span(&root, 1), std::vector<UOp>{i, j, l});
  ASSERT_EQ(nest.ranges.size(), 2u);
  EXPECT_EQ(range_arg(*nest.ranges[0]).size, 12);
  EXPECT_EQ(nest.ranges[1], l.u);
  EXPECT_EQ(written(root, {i, j, l}), written(nest.roots[0], nest.ranges));
}

TEST(MergeRanges, RefusesTransposesConditionsAndDivisions) {
  E i = r(0, 3), j = r(1, 4);
  UOp flat = i * 4 + j;
  UOp valid = UOp::make(Op::Load, DType::F32, {param(1), flat, (E(j) < 2).u});
  for (const UOp& value : {load(1, j * 3 + i), valid, load(1, i), load(1, j), load(1, (i + j) % 5),
                           cast(i, DType::F32)}) {
    UOp root = store(0, flat, value);
    LoopNest nest = merge_ranges(std::span(&root, 1), std::vector<UOp>{i, j});
    EXPECT_EQ(nest.ranges, (std::vector<UOp>{i, j})) << print(root);
  }
  // Inside of a division they may still count on.
  UOp root = store(0, flat, load(1, E(flat) / 5));
  EXPECT_EQ(merge_ranges(std::span(&root, 1), std::vector<UOp>{i, j}).ranges.size(), 1u);
}

TEST(MergeRanges, JoinsFoldsOnlyAmongThemselves) {
  E i = r(0, 3);
  UOp f = fold_range(1, 4), g = fold_range(2, 5);
  UOp root = store(0, i, sum(load(1, (i * 4 + f) * 5 + g), {f, g}));
  LoopNest nest = merge_ranges(std::span(&root, 1), std::vector<UOp>{i, f, g});
  ASSERT_EQ(nest.ranges.size(), 2u);
  EXPECT_EQ(nest.ranges[0], i.u);
  EXPECT_EQ(range_arg(*nest.ranges[1]).size, 20);
  EXPECT_EQ(nest.roots[0].src(2)->sources, 2u);
  EXPECT_EQ(written(root, {i, f, g}), written(nest.roots[0], nest.ranges));

  // Two folds that share one of them.
  UOp inner = load(1, (i * 4 + f) * 5 + g);
  UOp shared = store(0, i, binary(Op::Add, sum(inner, {f, g}), sum(load(2, f), {f})));
  EXPECT_EQ(merge_ranges(std::span(&shared, 1), std::vector<UOp>{i, f, g}).ranges.size(), 3u);
  // A fold within another.
  UOp nested = store(0, i, sum(sum(inner, {g}), {f}));
  EXPECT_EQ(merge_ranges(std::span(&nested, 1), std::vector<UOp>{i, f, g}).ranges.size(), 3u);
  // The other way round in the list of the fold.
  UOp turned = store(0, i, sum(inner, {g, f}));
  EXPECT_EQ(merge_ranges(std::span(&turned, 1), std::vector<UOp>{i, f, g}).ranges.size(), 3u);
}

TEST(MergeRanges, DropsRangesOfOne) {
  E i = r(0, 3), one = r(1, 1), j = r(2, 4);
  UOp root = store(0, i * 4 + one * 4 + j, load(1, i * 4 + j + one));
  LoopNest nest = merge_ranges(std::span(&root, 1), std::vector<UOp>{i, one, j});
  ASSERT_EQ(nest.ranges.size(), 1u);
  EXPECT_EQ(range_arg(*nest.ranges[0]).size, 12);
}

}  // namespace
}  // namespace tinyshard::test::affine_test
