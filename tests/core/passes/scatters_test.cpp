// Scattered sums that start from what is added to them, and scatters that write: the same values in
// one item.
#include "core/passes/scatters.h"

#include <gtest/gtest.h>

#include "core/uop/args.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::scatters_test {
namespace {

using test::buffer;
using test::Evaluator;
using test::Values;

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

TEST(Scatters, StartFromZerosAsTheyAre) {
  Table t;
  UOp zeros = const_float(DType::F32, 0, Dims{5, 4}), one = const_float(DType::F32, 1, Dims{5, 4});
  EXPECT_EQ(started(binary(Op::Add, zeros, t.scatter)), t.scatter);
  EXPECT_EQ(started(binary(Op::Add, t.scatter, zeros)), t.scatter);
  EXPECT_EQ(started(binary(Op::Add, t.scatter, one)).op(), Op::Add);
}

// Rows that were widened for a sum that is rounded to their type again.
TEST(Scatters, SumNarrowRowsAsTheyAre) {
  Table t;
  const UOp rows = buffer(5, Dims{3, 4}, DType::BF16), old = buffer(6, Dims{5, 4}, DType::BF16);
  const UOp wide =
      UOp::make(Op::ScatterAdd, DType::F32, {t.index, cast(rows, DType::F32)}, Dims{0, 5});
  const UOp zeros = const_float(DType::F32, 0, Dims{5, 4});
  for (const UOp& sum :
       {wide, binary(Op::Add, zeros, wide), binary(Op::Add, cast(old, DType::F32), wide)}) {
    const UOp result = started(cast(sum, DType::BF16));
    ASSERT_EQ(result.op(), Op::ScatterAdd) << print(std::span(&result, 1));
    EXPECT_EQ(result.dtype(), DType::BF16);
    EXPECT_EQ(result.src(1), rows);
    if (result->sources > 2) {
      EXPECT_EQ(result.src(2), old);
    }
    UOp roots[] = {cast(sum, DType::BF16), wide};
    EXPECT_EQ(start_scatters(roots, all)[0].op(), Op::Cast) << "somebody else reads the sum";
  }
  const UOp rounded = cast(t.scatter, DType::BF16);
  EXPECT_EQ(started(rounded), rounded) << "of rows in f32";
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

// Six entries for a table [5, 4], of which one lies outside and three meet, as Tensor::scatter and
// setitem spell what they write.
struct Writing {
  UOp x = buffer(1, Dims{5, 4}, DType::F32), rows = buffer(2, Dims{6, 4}, DType::F32);
  UOp index;             // [6, 1] or [6, 4]
  int64_t first = 1;     // the number of the first entry
  int64_t places = 5;    // that entries may name
  bool bounded = false;  // the gather's index is never negative
  UOp numbers, last, choice;

  explicit Writing(bool repeated) : index(buffer(3, Dims{6, repeated ? 1 : 4}, DType::I32)) {
    make();
  }

  void make() {
    const Dims all{6, index.shape()[1]}, table{places, index.shape()[1]};
    UOp counted = cast(UOp::make(Op::Iota, DType::I64, {}, Dims{6}), DType::I32);
    UOp line = reshape(counted, Dims{6, 1});
    UOp entries = expand(binary(Op::Add, line, const_like(line, first)), all);
    numbers = UOp::make(Op::ScatterAdd, DType::I32, {index, entries},
                        Dims{0, places, int64_t(ReduceOp::Max)});
    last = binary(Op::Max, numbers, const_int(DType::I32, 0, table));
    UOp entry = binary(Op::Sub, last, const_like(last, 1));
    if (bounded) entry = binary(Op::Max, entry, const_like(entry, 0));
    UOp written = expand(binary(Op::CmpLt, const_like(last, 0), last), Dims{5, 4});
    UOp picked = UOp::make(Op::Gather, DType::F32, {rows, expand(entry, Dims{5, 4})}, Dims{0});
    choice = where(written, picked, x);
  }

  Values values(const UOp& root) const {
    Evaluator evaluator;
    Values table(20), entries(24), places;
    for (size_t i = 0; i < 20; ++i) table[i] = double(i);
    for (size_t i = 0; i < 24; ++i) entries[i] = 100 + double(i);
    for (double place : {3., 1., 3., 5., 3., 0.})
      places.insert(places.end(), size_t(index.shape()[1]), place);
    evaluator.set(x, table);
    evaluator.set(rows, entries);
    evaluator.set(index, places);
    return evaluator(root);
  }
};

UOp as_written(const UOp& root) { return write_scatters(std::span(&root, 1), all)[0]; }

TEST(Scatters, WriteInOneItem) {
  for (bool repeated : {false, true}) {
    for (bool bounded : {false, true}) {
      Writing w(repeated);
      w.bounded = bounded;
      w.make();
      UOp result = as_written(w.choice);
      ASSERT_EQ(result.op(), Op::ScatterAdd) << print(std::span(&result, 1));
      EXPECT_TRUE(scatter_arg(*result).writes);
      EXPECT_EQ(w.values(result), w.values(w.choice));
    }
  }
}

// Two tables by one index.
TEST(Scatters, WriteTablesThatShareTheirNumbers) {
  Writing a(true), b(true);
  b.x = buffer(7, Dims{5, 4}, DType::F32), b.rows = buffer(8, Dims{6, 4}, DType::F32);
  b.make();
  ASSERT_EQ(a.last, b.last);
  UOp roots[] = {a.choice, b.choice};
  const std::vector<UOp> both = write_scatters(roots, all);
  for (const UOp& result : both) EXPECT_EQ(result.op(), Op::ScatterAdd);
  EXPECT_EQ(both[0].src(2), a.x);
  EXPECT_EQ(both[1].src(1), b.rows);
  UOp with_last[] = {a.choice, b.choice, a.last};
  EXPECT_EQ(write_scatters(with_last, all)[0], a.choice) << "somebody else reads the numbers";
}

TEST(Scatters, WriteNothingElse) {
  Writing w(true);
  EXPECT_EQ(write_scatters(std::span(&w.choice, 1), none)[0], w.choice) << "no library takes it";
  for (const UOp& other : {w.numbers, w.last}) {
    UOp roots[] = {w.choice, other};
    EXPECT_EQ(write_scatters(roots, all)[0], w.choice) << "somebody else reads the numbers";
  }
  for (int64_t first : {0, 2}) {
    Writing shifted(true);
    shifted.first = first;
    shifted.make();
    EXPECT_EQ(as_written(shifted.choice), shifted.choice) << "entries counted from " << first;
  }
  Writing longer(false);
  longer.rows = buffer(2, Dims{7, 4}, DType::F32);
  longer.make();
  EXPECT_EQ(as_written(longer.choice), longer.choice) << "rows that no entry has";
  Writing one(true);
  one.places = 1;
  one.make();
  EXPECT_EQ(as_written(one.choice), one.choice) << "one place, repeated";
  UOp sum = where(w.choice.src(0), binary(Op::Add, w.choice.src(1), w.x), w.x);
  EXPECT_EQ(as_written(sum), sum) << "what is picked is changed";
  UOp turned = where(w.choice.src(0), w.x, w.choice.src(1));
  EXPECT_EQ(as_written(turned), turned) << "what was there, where something is written";
}

}  // namespace
}  // namespace tinyshard::scatters_test
