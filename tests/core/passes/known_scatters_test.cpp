// Scattered sums by an index that is known: each place reads its stretch of entries.
#include "core/passes/known_scatters.h"

#include <gtest/gtest.h>

#include "core/uop/args.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::known_scatters_test {
namespace {

using test::buffer;
using test::Evaluator;
using test::Values;

UOp number(const UOp& like, int64_t value) { return const_int(like.dtype(), value, like.shape()); }
UOp times(const UOp& x, int64_t n) { return binary(Op::Mul, x, number(x, n)); }
UOp plus(const UOp& x, int64_t n) { return binary(Op::Add, x, number(x, n)); }
UOp over(const UOp& x, int64_t n) { return binary(Op::IDiv, x, number(x, n)); }
UOp at_least(const UOp& x, int64_t n) { return binary(Op::Max, x, number(x, n)); }
UOp at_most(const UOp& x, int64_t n) {
  return where(binary(Op::CmpLt, x, number(x, n)), x, number(x, n));
}

// A scatter of [2, entries, 3] along the middle, and whether it is one after the pass.
struct Scatter {
  UOp rows, scatter, gathered;

  Scatter(const UOp& index, int64_t places) {
    const int64_t entries = index.shape()[0];
    rows = buffer(1, Dims{2, entries, 3}, DType::F32);
    const UOp all = expand(reshape(cast(index, DType::I32), Dims{1, entries, 1}), rows.shape());
    scatter = UOp::make(Op::ScatterAdd, DType::F32, {all, rows}, Dims{1, places});
    gathered = gather_known_scatters(std::span(&scatter, 1))[0];
  }
  bool is_gathered() const {
    return std::ranges::none_of(toposort({&gathered, 1}),
                                [](const UOp& x) { return x.op() == Op::ScatterAdd; });
  }
  void expect_same() const {
    Evaluator evaluator;
    Values values(static_cast<size_t>(rows->numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = double(i * i % 101) - 40;
    evaluator.set(rows, values);
    EXPECT_EQ(evaluator(gathered), evaluator(scatter));
  }
};

UOp count(int64_t n) { return UOp::make(Op::Iota, DType::I64, {}, Dims{n}); }

TEST(KnownScatters, OfInterpolationsReadStretches) {
  for (const auto& [places, entries] : std::vector<std::pair<int64_t, int64_t>>{
           {4, 6}, {6, 4}, {7, 14}, {14, 7}, {5, 41}, {41, 5}, {9, 9}, {2, 9}, {13, 28}}) {
    SCOPED_TRACE(std::to_string(entries) + " entries into " + std::to_string(places));
    const UOp o = count(entries);
    const UOp place = at_most(at_least(plus(times(plus(times(o, 2), 1), places), -entries), 0),
                              (places - 1) * 2 * entries);
    const UOp below = over(place, 2 * entries);
    for (const UOp& index :
         {over(times(o, places), entries), over(times(plus(times(o, 2), 1), places), 2 * entries),
          below, at_most(plus(below, 1), places - 1), over(times(o, places - 1), entries - 1)}) {
      const Scatter s(index, places);
      EXPECT_TRUE(s.is_gathered()) << print(std::span(&index, 1));
      s.expect_same();
    }
  }
}

TEST(KnownScatters, StayWhereAnIndexFallsOrIsRead) {
  const UOp o = count(12);
  const UOp in_memory = buffer(2, Dims{12}, DType::I64);
  for (const UOp& index : {binary(Op::Sub, number(o, 11), o), binary(Op::Mod, o, number(o, 5)),
                           in_memory, plus(o, 1), plus(o, -1), at_least(o, 11)}) {
    const Scatter s(index, 12);
    EXPECT_EQ(s.gathered, s.scatter) << print(std::span(&index, 1));
  }
  EXPECT_TRUE(Scatter(o, 12).is_gathered());
}

}  // namespace
}  // namespace tinyshard::known_scatters_test
