// Products in loops compute what the products did, are made only where the library refuses or the
// limits say so, and what they store for themselves nobody else computes again.
#include "core/passes/products.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "devices/gpu/product_regions.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::products_test {
namespace {

using gpu::Epilogue;

bool all(const LibraryCall&) { return true; }
bool none(const LibraryCall&) { return false; }

UOp buffer(int64_t id, const Dims& shape, DType dtype = DType::F32) {
  return test::buffer(id, shape, dtype);
}

UOp dot(const UOp& a, const UOp& b, Epilogue epilogue = Epilogue::None) {
  auto batch = int64_t(a.shape().size()) - 2;
  UOp plain = gpu::product_with(Epilogue::None, a.dtype(), a, b, batch, {});
  if (epilogue == Epilogue::None) return plain;
  DimSpan shape = plain.shape();
  if (epilogue != Epilogue::GeluBackward) shape = shape.last(1);
  UOp c = test::buffer(99, shape, a.dtype());
  return gpu::product_with(epilogue, a.dtype(), a, b, batch, std::span(&c, 1));
}

int count(std::span<const UOp> roots, Op op) {
  int n = 0;
  for (const UOp& x : toposort(roots)) n += x.op() == op;
  return n;
}

std::vector<UOp> lowered(const std::vector<UOp>& before, bool (*supports)(const LibraryCall&),
                         SmallProducts small = {}) {
  std::vector<UOp> after = lower_products(before, supports, small), leaves;
  for (const UOp& x : toposort(before)) {
    if (x.op() == Op::Buffer) leaves.push_back(x);
  }
  test::expect_same(before, after, leaves);
  return after;
}

// --- what the library says -----------------------------------------------------------------------

struct Case {
  DType type;
  Epilogue epilogue;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << name(c.type) << " with epilogue " << int(c.epilogue);
}

class Products : public ::testing::TestWithParam<Case> {
 protected:
  // A plain one; a batch with operands that are computed and seen through views.
  std::vector<UOp> roots() const {
    auto [type, epilogue] = GetParam();
    UOp x = buffer(3, {5, 2, 3}, type), y = buffer(4, {2, 4, 5}, type);
    UOp a = permute(binary(Op::Mul, x, x), Dims{1, 2, 0});
    UOp b = permute(binary(Op::Add, y, const_like(y, 1)), Dims{0, 2, 1});
    return {dot(buffer(1, {3, 5}, type), buffer(2, {5, 4}, type), epilogue), dot(a, b, epilogue)};
  }
};

TEST_P(Products, StayWithALibraryThatTakesThem) {
  EXPECT_EQ(lower_products(roots(), all), roots());
}

TEST_P(Products, AreLoopsWhereItRefuses) {
  std::vector<UOp> after = lowered(roots(), none);
  EXPECT_EQ(count(after, Op::Dot), 0) << print(after);
  EXPECT_EQ(count(after, Op::Reduce), 2) << print(after);
}

TEST_P(Products, AreAskedForWithDenseOperands) {
  int asked = 0;
  lower_products(roots(), [&](const LibraryCall& call) {
    ++asked;
    EXPECT_EQ(gpu::epilogue_of(call.node), GetParam().epilogue);
    EXPECT_EQ(call.operands.size(), call.node->src().size());
    for (size_t i = 0; i < call.operands.size(); ++i)
      EXPECT_EQ(call.operands[i].strides, row_major(call.node.src(i).shape()).strides);
    return true;
  });
  EXPECT_EQ(asked, 2);
}

TEST(NarrowConvolutions, AreThoseOfF32WhereALibraryTakesThese) {
  ConvArg arg{{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, {2, 4, 5, 6}};
  for (DType type : {DType::F16, DType::BF16}) {
    UOp x = buffer(1, {2, 3, 5, 6}, type), w = buffer(2, {4, 3, 3, 3}, type);
    std::vector<UOp> roots{UOp::make(Op::Conv, type, {x, w}, to_ints(arg))};
    std::vector<UOp> wide =
        lowered(roots, [](const LibraryCall& call) { return call.node.dtype() == DType::F32; });
    EXPECT_EQ(wide[0].dtype(), type);
    ASSERT_EQ(count(wide, Op::Conv), 1);
    for (const UOp& node : toposort(wide)) {
      EXPECT_TRUE(node.op() != Op::Conv || node.dtype() == DType::F32);
    }
    EXPECT_EQ(lowered(roots, all), roots);
    EXPECT_EQ(count(lowered(roots, none), Op::Conv), 0);
  }
}

// A library that refuses the gradient by x of a 1x1 convolution with a stride may take the product that it
// is: of sizes that the stride divides, leaves a rest of, or ends beyond.
TEST(StridedConvolutions, OfOnePlaceAreProducts) {
  auto takes_products = [](const LibraryCall& call) { return call.node.op() == Op::Dot; };
  for (const auto& [h, w, down, across] : std::vector<std::array<int64_t, 4>>{
           {6, 8, 2, 2}, {7, 9, 2, 2}, {9, 7, 3, 2}, {5, 5, 1, 4}, {1, 1, 2, 2}, {8, 3, 4, 3}}) {
    for (DType type : {DType::F32, DType::F64, DType::BF16}) {
      const int64_t beyond =
          type == DType::F64 ? 2 : 0;  // padding at the end, which some windows read
      const int64_t oh = (h + beyond - 1) / down + 1, ow = (w + beyond - 1) / across + 1;
      const ConvArg arg{{down, across}, {1, 1}, {0, 0}, {beyond, beyond}, 1, {2, 3, h, w}};
      UOp g = buffer(1, {2, 5, oh, ow}, type), weight = buffer(2, {5, 3, 1, 1}, type);
      const std::vector<UOp> roots{
          UOp::make(Op::ConvBackwardData, type, {g, weight}, to_ints(arg))};
      const std::vector<UOp> after = lowered(roots, takes_products);
      EXPECT_EQ(count(after, Op::Dot), 1) << print(after);
      EXPECT_EQ(count(after, Op::Reduce), 0) << print(after);
      EXPECT_EQ(count(lowered(roots, none), Op::Dot), 0);
      EXPECT_EQ(lowered(roots, all), roots);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Products,
    ::testing::Values(Case{DType::F32, Epilogue::None}, Case{DType::F32, Epilogue::Bias},
                      Case{DType::F32, Epilogue::BiasRelu}, Case{DType::F32, Epilogue::BiasGelu},
                      Case{DType::F32, Epilogue::GeluBackward}, Case{DType::BF16, Epilogue::None},
                      Case{DType::BF16, Epilogue::BiasRelu},
                      Case{DType::F16, Epilogue::GeluBackward}));

// --- few terms -----------------------------------------------------------------------------------

constexpr SmallProducts kShort{.terms = 4, .elements = 12};

bool is_loops(const UOp& product, SmallProducts small) {
  return count(lowered({product}, all, small), Op::Dot) == 0;
}

TEST(ShortProducts, AreLoopsThoughALibraryTakesThem) {
  EXPECT_TRUE(is_loops(dot(buffer(1, {3, 4}), buffer(2, {4, 4})), kShort));
  EXPECT_TRUE(is_loops(dot(buffer(1, {2, 3, 4}), buffer(2, {2, 4, 2})), kShort)) << "a batch";
  EXPECT_FALSE(is_loops(dot(buffer(1, {3, 4}), buffer(2, {4, 4})), {})) << "no limits";
}

TEST(ShortProducts, AreAPartOfTheKernelThatReadsThem) {
  UOp product = dot(buffer(1, {3, 4}), buffer(2, {4, 4}));
  EXPECT_EQ(count(lowered({product}, all, kShort), Op::Contiguous), 0);
  EXPECT_EQ(count(lowered({product}, none, kShort), Op::Contiguous), 0);
  EXPECT_EQ(count(lowered({product}, none), Op::Contiguous), 1) << "others are stored";
}

TEST(ShortProducts, HaveNoMoreTermsOrElementsThanTheLimits) {
  EXPECT_FALSE(is_loops(dot(buffer(1, {3, 5}), buffer(2, {5, 4})), kShort)) << "5 terms";
  EXPECT_FALSE(is_loops(dot(buffer(1, {13, 4}), buffer(2, {4, 1})), kShort)) << "13 elements";
  EXPECT_FALSE(is_loops(dot(buffer(1, {2, 3, 4}), buffer(2, {2, 4, 3})), kShort)) << "2 times 9";
}

TEST(ShortProducts, HaveNoRegion) {
  for (Epilogue e :
       {Epilogue::Bias, Epilogue::BiasRelu, Epilogue::BiasGelu, Epilogue::GeluBackward}) {
    EXPECT_FALSE(is_loops(dot(buffer(1, {3, 4}), buffer(2, {4, 4}), e), kShort)) << int(e);
  }
}

// --- one row, or column --------------------------------------------------------------------------

constexpr SmallProducts kFew{.few = 2, .matrix = 20};

TEST(FewRowProducts, ReadAMatrixThatLiesAlongTheSums) {
  auto along = [](int64_t rows, int64_t terms, int64_t columns, DType type = DType::F32) {
    return dot(buffer(1, {rows, terms}, type),
               permute(buffer(2, {columns, terms}, type), Dims{1, 0}));
  };
  EXPECT_TRUE(is_loops(along(1, 5, 4), kFew));
  EXPECT_TRUE(is_loops(along(2, 5, 4), kFew));
  EXPECT_TRUE(is_loops(along(4, 5, 2), kFew)) << "few columns";
  EXPECT_TRUE(is_loops(along(2, 5, 4, DType::BF16), kFew));
  EXPECT_FALSE(is_loops(along(3, 5, 4), kFew)) << "3 rows";
  EXPECT_FALSE(is_loops(along(1, 5, 3), kFew)) << "15 elements";
  EXPECT_FALSE(is_loops(along(1, 5, 4), {})) << "no limits";
  const UOp across = buffer(2, {5, 4});
  EXPECT_FALSE(is_loops(dot(buffer(1, {1, 5}), across), kFew)) << "across the sums";
  const UOp narrow = buffer(2, {5, 4}, DType::BF16);
  EXPECT_TRUE(is_loops(dot(buffer(1, {1, 5}, DType::BF16), narrow), kFew))
      << "16 bits in any order";
}

TEST(FewRowProducts, OfABatchHaveAMatrixEach) {
  const UOp x = buffer(1, {3, 1, 5}), w = buffer(2, {3, 4, 5}), shared = buffer(2, {1, 4, 5});
  EXPECT_TRUE(is_loops(dot(x, permute(w, Dims{0, 2, 1})), kFew));
  EXPECT_FALSE(is_loops(dot(x, permute(expand(shared, Dims{3, 4, 5}), Dims{0, 2, 1})), kFew));
}

// --- few columns ---------------------------------------------------------------------------------

constexpr SmallProducts kNarrow{.columns = 3, .multiplications = 60};

UOp transposed(const UOp& x) { return permute(x, Dims{1, 0}); }

// [m, k] times the transpose of [n, k], as a layer multiplies.
UOp linear(int64_t m, int64_t k, int64_t n, Epilogue epilogue = Epilogue::None) {
  return dot(buffer(1, {m, k}), transposed(buffer(2, {n, k})), epilogue);
}

TEST(NarrowProducts, AreSumsOfRowsInAKernelOfTheirOwn) {
  for (Epilogue e : {Epilogue::None, Epilogue::Bias, Epilogue::BiasRelu, Epilogue::BiasGelu,
                     Epilogue::GeluBackward}) {
    std::vector<UOp> after = lowered({linear(4, 5, 3, e)}, all, kNarrow);
    EXPECT_EQ(count(after, Op::Dot), 0) << int(e);
    EXPECT_EQ(count(after, Op::Contiguous), 1) << print(after);
  }
  EXPECT_FALSE(is_loops(linear(4, 5, 3), {})) << "no limits";
  UOp b = permute(buffer(2, {2, 3, 5}), Dims{0, 2, 1});
  EXPECT_TRUE(is_loops(dot(buffer(1, {2, 2, 5}), b), kNarrow)) << "a batch";
}

TEST(NarrowProducts, HaveNoMoreColumnsOrMultiplicationsThanTheLimits) {
  EXPECT_FALSE(is_loops(linear(3, 5, 4), kNarrow)) << "4 columns";
  EXPECT_FALSE(is_loops(linear(5, 5, 3), kNarrow)) << "75 multiplications";
  EXPECT_FALSE(is_loops(linear(4, 5, 4, Epilogue::Bias), kNarrow)) << "both";
  UOp b = permute(buffer(2, {2, 3, 5}), Dims{0, 2, 1});
  EXPECT_FALSE(is_loops(dot(buffer(1, {2, 4, 5}), b), kNarrow)) << "2 times 60";
}

TEST(NarrowProducts, SumAlongTheRowsOfTheFirstOperand) {
  UOp b = transposed(buffer(2, {3, 5}));
  EXPECT_TRUE(is_loops(dot(reshape(buffer(1, {2, 2, 5}), Dims{4, 5}), b), kNarrow));
  EXPECT_FALSE(is_loops(dot(transposed(buffer(1, {5, 4})), b), kNarrow));
  UOp seen = reshape(permute(buffer(1, {5, 2, 2}), Dims{1, 2, 0}), Dims{4, 5});
  EXPECT_FALSE(is_loops(dot(seen, b), kNarrow)) << "below a reshape";
}

TEST(NarrowProducts, SumAlongTheRowsOfTheSecondOperand) {
  UOp a = buffer(1, {4, 5});
  EXPECT_FALSE(is_loops(dot(a, buffer(2, {5, 3})), kNarrow)) << "it runs down columns";
  UOp seen = reshape(permute(buffer(2, {5, 3, 1}), Dims{1, 0, 2}), Dims{3, 5});
  EXPECT_FALSE(is_loops(dot(a, transposed(seen)), kNarrow)) << "transposed twice";
}

// --- operands that are stored --------------------------------------------------------------------

// v = x * y is an operand of a short product, read by others as well.
struct Shared {
  DType type = DType::F32;
  UOp x = buffer(1, {4, 3}, type), y = buffer(2, {4, 3}, type);
  UOp v = binary(Op::Mul, x, y);
  UOp small = dot(v, buffer(3, {3, 2}, type)), large = dot(v, buffer(4, {3, 7}, type));
  UOp sum = reduce(ReduceOp::Sum, v, Dims{1});
};

std::vector<UOp> copies_of(const UOp& x, std::span<const UOp> roots) {
  std::vector<UOp> found;
  for (const UOp& y : toposort(roots)) {
    if (y.op() == Op::Contiguous && y.src(0) == x) found.push_back(y);
  }
  return found;
}

TEST(StoredOperands, AreReadByAllOthersToo) {
  Shared s;
  std::vector<UOp> after = lowered({s.small, s.large, s.sum}, all, kShort);
  std::vector<UOp> copies = copies_of(s.v, after);
  ASSERT_EQ(copies.size(), 1u) << print(after);
  EXPECT_EQ(count(after, Op::Contiguous), 1);
  EXPECT_EQ(count(after, Op::Dot), 1) << print(after);
  ASSERT_EQ(after[1].op(), Op::Dot);
  EXPECT_EQ(after[1].src(0), copies[0]) << print(after);
  ASSERT_EQ(after[2].op(), Op::Reduce);
  EXPECT_EQ(after[2].src(0), copies[0]) << print(after);
}

TEST(StoredOperands, MayBeRoots) {
  Shared s;
  std::vector<UOp> after = lowered({s.v, s.large, s.small, s.v}, all, kShort);
  std::vector<UOp> copies = copies_of(s.v, after);
  ASSERT_EQ(copies.size(), 1u) << print(after);
  EXPECT_EQ(after[0], copies[0]);
  EXPECT_EQ(after[1].src(0), copies[0]);
  EXPECT_EQ(after[3], copies[0]);
}

TEST(StoredOperands, AreReadThroughViews) {
  Shared s;
  UOp wide = dot(buffer(5, {7, 4}), s.v), other = dot(transposed(s.v), buffer(6, {4, 7}));
  UOp small = dot(buffer(7, {2, 3}), transposed(s.v));
  std::vector<UOp> after = lowered({wide, other, small}, all, kShort);
  std::vector<UOp> copies = copies_of(s.v, after);
  ASSERT_EQ(copies.size(), 1u) << print(after);
  EXPECT_EQ(after[0].src(1), copies[0]);
  EXPECT_EQ(after[1].src(0), transposed(copies[0]));
}

TEST(StoredOperands, MayBeMadeOfEachOther) {
  Shared s;
  UOp u = binary(Op::Add, s.v, s.x);
  std::vector<UOp> after = lowered({s.small, dot(u, buffer(5, {3, 2})), u}, all, kShort);
  std::vector<UOp> copies = copies_of(s.v, after);
  ASSERT_EQ(copies.size(), 1u) << print(after);
  EXPECT_EQ(copies_of(binary(Op::Add, copies[0], s.x), after), (std::vector<UOp>{after[2]}));
  EXPECT_EQ(count(after, Op::Contiguous), 2);
}

TEST(StoredOperands, AreNoneWhereTheLibraryTakesAllProducts) {
  Shared s;
  std::vector<UOp> before{s.small, s.large, s.sum, s.v};
  EXPECT_EQ(lowered(before, all), before);
}

// The loops sum in a wider type: what they store is not what others read.
TEST(StoredOperands, OfAWiderTypeAreForTheLoopsAlone) {
  Shared s{.type = DType::BF16};
  std::vector<UOp> after = lowered({s.small, s.large, s.sum}, all, kShort);
  EXPECT_EQ(copies_of(cast(s.v, DType::F32), after).size(), 1u) << print(after);
  EXPECT_EQ(after[1], s.large);
  EXPECT_EQ(after[2], s.sum);
}

}  // namespace
}  // namespace tinyshard::products_test
