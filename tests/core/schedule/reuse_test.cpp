// Results take the memory of an operand that they are the last to read; where others read it beside
// them they take memory of their own, as far as there is some to spare.
#include "core/schedule/reuse.h"

#include <algorithm>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/schedule/memory.h"
#include "core/schedule/schedule.h"
#include "core/schedule/verify.h"

namespace tinyshard::reuse_test {
namespace {

constexpr int64_t kWidth = 16, kBytes = kWidth * kWidth * int64_t(sizeof(float));

Tensor data(const Ints& shape = {kWidth, kWidth}) { return Tensor::randn(shape).realize(); }

// Products are items of their own, and make what is computed from them have memory.
Schedule planned(const std::vector<Tensor>& tensors, int64_t spare) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  std::vector<Sharding> shardings(roots.size(), replicated(default_mesh()));
  return make_schedule(
      without_names(roots), shardings,
      {.library_supports = [](const LibraryCall&) { return true; }, .spare_bytes = spare});
}

// Tells of each kernel's result whether it lies where an operand was; in the order of the items.
std::vector<bool> replacing(const Schedule& schedule) {
  std::vector<bool> found;
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Kernel) continue;
    EXPECT_EQ(item.writes.size(), 1u) << item.describe();
    int previous = schedule.buffers[size_t(item.writes[0])].previous;
    found.push_back(previous >= 0);
    if (previous >= 0) {
      EXPECT_NE(std::ranges::find(item.reads, previous), item.reads.end());
      EXPECT_EQ(schedule.buffers[size_t(previous)].bytes(), kBytes);
    }
  }
  return found;
}
using Replacing = std::vector<bool>;

// A product, another item that reads it, and twice the product, which a third item reads.
std::vector<Tensor> read_twice() {
  Tensor t = data().matmul(data());
  return {t.matmul(data()), (t * 2).matmul(data())};
}

TEST(Reuse, AResultTakesTheMemoryOfAnOperand) {
  EXPECT_EQ(replacing(planned(read_twice(), 0)), Replacing{true});
}

TEST(Reuse, WithMemoryToSpareAResultWaitsForNoOtherReader) {
  EXPECT_EQ(replacing(planned(read_twice(), kBytes)), Replacing{false});
  EXPECT_EQ(replacing(planned(read_twice(), 100 * kBytes)), Replacing{false});
}

TEST(Reuse, WithTooLittleToSpareItDoes) {
  EXPECT_EQ(replacing(planned(read_twice(), kBytes - 1)), Replacing{true});
}

TEST(Reuse, AnOperandWithoutOtherReadersIsReplacedInAnyCase) {
  for (int64_t spare : {int64_t{0}, kBytes, 100 * kBytes}) {
    Tensor t = data().matmul(data());
    EXPECT_EQ(replacing(planned({(t * 2).matmul(data())}, spare)), Replacing{true}) << spare;
  }
}

// Whichever operand comes first.
TEST(Reuse, AnOperandWithoutOtherReadersIsPreferred) {
  for (bool first : {true, false}) {
    Tensor t = data().matmul(data()), a = data().matmul(data());
    Tensor sum = first ? a + t : t + a;
    EXPECT_EQ(replacing(planned({t.matmul(data()), sum.matmul(data())}, kBytes)), Replacing{true});
  }
}

TEST(Reuse, WhatIsSparedIsSpentOnce) {
  auto both = [](int64_t spare) {
    std::vector<Tensor> roots = read_twice(), more = read_twice();
    roots.insert(roots.end(), more.begin(), more.end());
    return replacing(planned(roots, spare));
  };
  EXPECT_EQ(both(0), (Replacing{true, true}));
  EXPECT_EQ(both(kBytes), (Replacing{false, true}));
  EXPECT_EQ(both(2 * kBytes - 1), (Replacing{false, true}));
  EXPECT_EQ(both(2 * kBytes), (Replacing{false, false}));
}

// Who wrote the operand has read what lay there before, and is waited for anyway.
TEST(Reuse, TheWriterOfAnOperandIsNoOtherReader) {
  Tensor t = data().matmul(data());
  Tensor weights = t.softmax(1).contiguous().softmax(0).contiguous();
  for (int64_t spare : {int64_t{0}, 100 * kBytes})
    EXPECT_EQ(replacing(planned({weights.matmul(data())}, spare)), (Replacing{true, true}));
}

// The mean of each column in parts, and then squares of what is left, in parts again: in place, the second
// kernel would be one team's for each column, however long these are.
TEST(Reuse, AFoldOfFewElementsDoesNotHoldUpMuchWork) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL_H200"}});
  const Tensor x = Tensor::empty({62, 64, 112, 112}, DType::BF16).realize();
  const PlanSummary summary = summarize(x.var(Axes(Dims{0, 2, 3})));
  Runtime::shutdown();
  // Both partial results, 62 x 64 numbers each, have memory of their own.
  EXPECT_GE(summary.arena_bytes, int64_t{2} * 62 * 64 * 4);
}

// A row is divided by its sum: who made the sum has read the row.
TEST(Reuse, AReaderThatIsWaitedForAnywayIsNotBeside) {
  Tensor t = data().matmul(data()), sums = t.matmul(data({kWidth, 1}));
  for (int64_t spare : {int64_t{0}, 100 * kBytes})
    EXPECT_EQ(replacing(planned({(t / sums).matmul(data())}, spare)), Replacing{true});
}

// So many items lie between that the other reader is long done.
TEST(Reuse, AReaderFarBeforeIsNotBeside) {
  auto with_between = [](int items) {
    Tensor t = data().matmul(data()), row = t.matmul(data({kWidth, 1})).reshape({1, kWidth});
    for (int i = 0; i < items; ++i) row = row.matmul(data());
    return replacing(planned({row, (t * 2).matmul(data())}, kBytes));
  };
  EXPECT_EQ(with_between(kBeside - 1), Replacing{false});
  EXPECT_EQ(with_between(kBeside), Replacing{true});
}

// --- which kernels may write over what they read -------------------------------------------------

// A kernel of 4 x 3 elements that reads buffer 1 and writes buffer 0.
class MayReplace : public testing::Test {
 protected:
  static constexpr int64_t kRows = 4, kColumns = 3;
  const UOp i_ = range(0, kRows, RangeKind::Loop), j_ = range(1, kColumns, RangeKind::Loop);
  const UOp row_ = range(64, kRows, RangeKind::Fold),
            column_ = range(64, kColumns, RangeKind::Fold);
  const UOp inner_row_ = range(128, kRows, RangeKind::Fold);

  static UOp at(const UOp& row, const UOp& column) {
    Simplifier simplify;
    return simplify(binary(Op::Add, binary(Op::Mul, row, index_const(kColumns)), column));
  }
  static UOp read(const UOp& row, const UOp& column) {
    UOp param = UOp::make(Op::Param, DType::F32, {}, Dims{1});
    return UOp::make(Op::Load, DType::F32, {param, at(row, column)});
  }
  static UOp sum(const UOp& x, const UOp& range) {
    return UOp::make(Op::Fold, DType::F32, {x, range}, Dims{int64_t(ReduceOp::Sum)});
  }
  // x where `range` is not beyond `last`.
  static UOp up_to(const UOp& x, const UOp& range, const UOp& last) {
    return where(binary(Op::CmpLt, range, binary(Op::Add, last, index_const(1))), x,
                 const_float(DType::F32, 0));
  }
  bool may_replace(const UOp& value) const {
    KernelDraft draft;
    draft.loops = {i_, j_};
    draft.slots = {0, 1};
    draft.outputs.push_back({0, at(i_, j_), value});
    FreeRanges free_ranges;
    return tinyshard::may_replace(draft, draft.outputs[0], 1, free_ranges);
  }
};

TEST_F(MayReplace, WhatIsReadWhereItIsStored) {
  EXPECT_TRUE(may_replace(binary(Op::Mul, read(i_, j_), read(i_, j_))));
  UOp before = binary(Op::Sub, index_const(kRows - 1), i_);
  EXPECT_FALSE(may_replace(binary(Op::Add, read(i_, j_), read(before, j_))));
}

TEST_F(MayReplace, ARowOrColumnThatIsSummedBefore) {
  EXPECT_TRUE(may_replace(binary(Op::Mul, read(i_, j_), sum(read(i_, column_), column_))));
  EXPECT_TRUE(may_replace(binary(Op::Mul, read(i_, j_), sum(read(row_, j_), row_))));
  // Sums the row that is stored last.
  UOp last = index_const(kRows - 1);
  EXPECT_FALSE(may_replace(binary(Op::Mul, read(i_, j_), sum(read(last, column_), column_))));
}

TEST_F(MayReplace, NotWhatIsSummedForEachElement) {
  EXPECT_FALSE(may_replace(sum(up_to(read(row_, j_), row_, i_), row_)));
}

// The variance of a row: the mean within is complete before.
TEST_F(MayReplace, SumsOfDifferencesFromASum) {
  UOp other = range(65, kColumns, RangeKind::Fold);
  UOp difference = binary(Op::Sub, read(i_, column_), sum(read(i_, other), other));
  EXPECT_TRUE(may_replace(sum(binary(Op::Mul, difference, difference), column_)));
}

// A column summed up to each of its elements, for a sum that is computed once for the column or for
// each element.
TEST_F(MayReplace, SumsWithinSums) {
  UOp inner = sum(up_to(read(inner_row_, j_), inner_row_, row_), inner_row_);
  EXPECT_TRUE(may_replace(sum(inner, row_)));
  EXPECT_FALSE(may_replace(sum(up_to(inner, row_, i_), row_)));
  EXPECT_FALSE(may_replace(binary(Op::Add, sum(inner, row_), sum(up_to(inner, row_, i_), row_))));
}

// A value that is the same for all rows and columns, read along the rows by one result and along
// the columns by another: loops run one after the other, and no third result may lie where it was.
TEST_F(MayReplace, NotWhatTwoNestsRead) {
  const UOp none = index_const(0), value = read(none, none);
  KernelDraft draft;
  draft.loops = {i_, j_};
  draft.slots = {0, 1};
  draft.outputs.push_back({0, none, binary(Op::Add, value, value)});
  draft.outputs.push_back({2, i_, binary(Op::Mul, value, value)});
  FreeRanges free_ranges;
  EXPECT_TRUE(tinyshard::may_replace(draft, draft.outputs[0], 1, free_ranges));
  draft.outputs.push_back({3, j_, value});
  EXPECT_FALSE(tinyshard::may_replace(draft, draft.outputs[0], 1, free_ranges));
}

// Two sums lie in a bucket of 16 numbers, the second one from the eighth on, and what is made of it
// has 16: there it would lie beyond the end.
TEST(Reuse, AMemberOfABucketIsNotTakenForTheBucket) {
  const Mesh mesh = Mesh::of({"CPU:0", "CPU:1"});
  auto rows = [&](int64_t width, double step) {
    const Tensor x = (Tensor::arange(4 * width).cast(DType::F64) * step).sin();
    return x.reshape({4, width}).shard(mesh, {{"data", Shard(0)}}).realize();
  };
  const Tensor a = rows(7, 0.3).sum(0), b = rows(6, 0.7).sum(0);
  const Tensor padded = b.cos().pad({{0, 10}}).contiguous();
  const Tensor first = a.sin(), sums = padded.flip({0}).cumsum(0);
  const std::vector<UOp> roots{first.uop(), sums.uop(), padded.cumsum(0).uop()};
  const Schedule plan = make_plan(roots);
  const int64_t collectives = std::ranges::count(plan.items, Item::Kind::Collective, &Item::kind);
  EXPECT_EQ(collectives, 1) << "both sums are in one bucket";
  verify_memory(plan);
}

// --- values --------------------------------------------------------------------------------------

// Each is computed by itself: nobody else reads what is in between.
double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.realize() - b.realize()).abs().max().item<double>();
}

Tensor waves(const Ints& shape, double step) {
  return (Tensor::arange(product(shape.values)).reshape(shape).cast(DType::F64) * step).sin();
}

TEST(Reuse, SumsOfSumsOfAProductReadItToTheEnd) {
  constexpr int64_t n = 5;
  Tensor w = waves({n, 3}, 0.3).realize();
  auto result = [&](bool whole) {
    Tensor z = w.matmul(w.T()).roll(1, 1).cumsum(0) * 2 + waves({n, n}, 1);
    if (whole) z = z.contiguous();
    return w.T().matmul(z.flip(0).cumsum(0).flip(0).roll(-1, 1));
  };
  EXPECT_LT(largest_difference(result(false), result(true)), 1e-12);
}

TEST(Reuse, GradientsOfSumsOfSumsOfAProductReadItToTheEnd) {
  for (auto [rows, columns] : {std::pair{5, 8}, {5, 3}, {6, 2}}) {
    Tensor x = waves({rows, columns}, 0.7).realize(), s = waves({rows, rows}, 0.37).realize();
    auto result = [&](bool whole) {
      auto stored = [&](const Tensor& t) { return whole ? t.contiguous() : t; };
      Tensor h = stored(stored(stored(x.matmul(x.transpose())).roll(3, 1)).cumsum(0));
      return ((h * s).sum() + h.square().sum()).gradient({x})[0];
    };
    EXPECT_LT(largest_difference(result(false), result(true)), 1e-9) << rows << " " << columns;
  }
  Tensor x = waves({9, 5, 9}, 0.7).realize(), s = waves({9, 5, 5}, 0.37).realize();
  auto result = [&](bool whole) {
    auto stored = [&](const Tensor& t) { return whole ? t.contiguous() : t; };
    Tensor t = stored(x.matmul(x.transpose(-1, -2))), h = stored(stored(t * t + t).cumsum(1));
    return ((h * s).sum() + h.square().mean()).gradient({x})[0];
  };
  EXPECT_LT(largest_difference(result(false), result(true)), 1e-9);
}

}  // namespace
}  // namespace tinyshard::reuse_test
