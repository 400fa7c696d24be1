// Shapes and bounds that nodes are given when they are made.
#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/uop/args.h"
#include "core/uop/product_region.h"
#include "core/uop/uop.h"

namespace tinyshard::shape_test {
namespace {

UOp buffer(int64_t id, Dims shape, DType d = DType::F32) {
  shape.insert(shape.begin(), id);
  return UOp::make(Op::Buffer, d, {}, shape);
}
std::string shape(const UOp& x) { return to_string(x.shape()); }

TEST(Shapes, OfMovement) {
  UOp x = buffer(1, {2, 1, 4});
  EXPECT_EQ(shape(reshape(x, Dims{8})), "[8]");
  EXPECT_EQ(shape(expand(x, Dims{2, 3, 4})), "[2, 3, 4]");
  EXPECT_EQ(shape(permute(x, Dims{2, 0, 1})), "[4, 2, 1]");
  EXPECT_EQ(shape(pad(x, Dims{1, 0, 2, 3, 0, 0})), "[3, 6, 4]");
  EXPECT_EQ(shape(shrink(x, Dims{1, 2, 0, 1, 0, 3})), "[1, 1, 3]");
  EXPECT_EQ(shape(shrink(x, Dims{1, 1, 0, 1, 0, 3})), "[0, 1, 3]");
  EXPECT_EQ(shape(flip(x, Dims{2})), "[2, 1, 4]");
  EXPECT_EQ(shape(UOp::make(Op::ShardSlice, DType::F32, {x}, Dims{2, 0, 3})), "[2, 1, 2]");
}

TEST(Shapes, OfReductionsAndProducts) {
  UOp x = buffer(1, {2, 3, 4}), y = buffer(2, {2, 4, 5});
  EXPECT_EQ(shape(reduce(ReduceOp::Sum, x, Dims{0, 2})), "[1, 3, 1]");
  EXPECT_EQ(shape(UOp::make(Op::Dot, DType::F32, {x, y}, Dims{1})), "[2, 3, 5]");
  UOp index = buffer(3, {2, 7, 4}, DType::I64);
  EXPECT_EQ(shape(UOp::make(Op::Gather, DType::F32, {x, index}, Dims{1})), "[2, 7, 4]");
  // Rows are read by their own order along the last dim only.
  const auto by_order = [&](int64_t axis) {
    return UOp::make(Op::Gather, DType::F32, {x, buffer(5, {2, 3, 4}, DType::I32)},
                     sorting_gather(axis, Sorting::Rising));
  };
  EXPECT_EQ(shape(by_order(2)), "[2, 3, 4]");
  EXPECT_THROW(by_order(1), InternalError);
  UOp values = buffer(4, {2, 7, 4});
  EXPECT_EQ(shape(UOp::make(Op::ScatterAdd, DType::F32, {index, values}, Dims{1, 9})), "[2, 9, 4]");
  EXPECT_EQ(shape(UOp::make(Op::Iota, DType::I64, {}, Dims{6})), "[6]");
}

TEST(Shapes, OfFactors) {
  const UOp tall = buffer(1, {2, 5, 3}), wide = buffer(2, {3, 5});
  auto factor = [](const UOp& x, Factor which, bool full = true) {
    return UOp::make(Op::Decompose, DType::F32, {x}, to_ints(DecomposeArg{which, full}));
  };
  EXPECT_EQ(shape(factor(tall, Factor::Q)), "[2, 5, 5]");
  EXPECT_EQ(shape(factor(tall, Factor::R)), "[2, 5, 3]");
  EXPECT_EQ(shape(factor(tall, Factor::U)), "[2, 5, 5]");
  EXPECT_EQ(shape(factor(tall, Factor::U, false)), "[2, 5, 3]");
  EXPECT_EQ(shape(factor(tall, Factor::S)), "[2, 3]");
  EXPECT_EQ(shape(factor(tall, Factor::V)), "[2, 3, 3]");
  EXPECT_EQ(shape(factor(wide, Factor::R)), "[3, 5]");
  EXPECT_EQ(shape(factor(wide, Factor::U, false)), "[3, 3]");
  EXPECT_EQ(shape(factor(wide, Factor::V, false)), "[3, 5]");
  EXPECT_EQ(shape(factor(wide, Factor::V)), "[5, 5]");
  EXPECT_THROW(factor(buffer(3, {4}), Factor::Q), InternalError);
  EXPECT_THROW(UOp::make(Op::Decompose, DType::F32, {tall}, Dims{5, 1}), InternalError);
  EXPECT_THROW(UOp::make(Op::Decompose, DType::F32, {tall}, Dims{0}), InternalError);
}

UOp negated(const UOp& sums, std::span<const UOp>) { return unary(Op::Neg, sums); }
const char* one_row(DType dtype, DimSpan shape, std::span<const UOp> operands) {
  const bool fits = operands.size() == 1 && operands[0].dtype() == dtype &&
                    std::ranges::equal(operands[0].shape(), shape.last(1));
  return fits ? nullptr : "one row";
}
constexpr ProductRegion kFirst{7, "first", negated, one_row},
    kSecond{8, "second", negated, one_row};

TEST(Shapes, OfProductsWithARegion) {
  UOp a = buffer(1, {2, 3}), b = buffer(2, {3, 5}), row = buffer(3, {5}), whole = buffer(4, {2, 5});
  auto dot = [&](const ProductRegion& region, const std::vector<UOp>& operands) {
    return region_product(region, DType::F32, a, b, 0, operands);
  };
  UOp x = dot(kFirst, {row});
  EXPECT_EQ(shape(x), "[2, 5]");
  EXPECT_EQ(region_of(x), &kFirst);
  EXPECT_EQ(dot(kFirst, {row}), x);
  EXPECT_EQ(region_of(x.with_src(std::vector<UOp>{a, b, buffer(5, {5})})), &kFirst);
  EXPECT_FALSE(dot(kSecond, {row}) == x);
  EXPECT_THROW(dot(kFirst, {whole}), InternalError);
  EXPECT_THROW(dot(kFirst, {buffer(3, {5}, DType::BF16)}), InternalError);
  EXPECT_THROW(dot(kFirst, {}), InternalError);
  EXPECT_THROW(UOp::make(Op::Dot, DType::F32, {a, b, row}, Dims{0}), InternalError);
  EXPECT_THROW(UOp::make(Op::Dot, DType::F32, {a, b}, Dims{0, 7}), InternalError);
}

// Regions are told apart in other processes and in texts by their number.
TEST(Shapes, ARegionHasANumberAndAName) {
  UOp a = buffer(1, {2, 3}), b = buffer(2, {3, 5}), row = buffer(3, {5});
  const UOp x = region_product(kFirst, DType::F32, a, b, 0, std::span(&row, 1)),
            y = region_product(kSecond, DType::F32, a, b, 0, std::span(&row, 1));
  EXPECT_EQ(describe(*x), "dot f32[2, 5] [0, 7]");
  EXPECT_NE(print(x).find("(first)"), std::string::npos) << print(x);
  EXPECT_NE(structural_hash(std::span(&x, 1)), structural_hash(std::span(&y, 1)));
  EXPECT_EQ(from_sums(x, sums_of(x)),
            unary(Op::Neg, UOp::make(Op::Dot, DType::F32, {a, b}, Dims{0})));
}

TEST(Shapes, OfAttention) {
  UOp q = buffer(1, {2, 3, 5, 8}), k = buffer(2, {2, 3, 7, 8}), v = buffer(3, {2, 3, 7, 6});
  auto forward = [&](std::vector<UOp> src, int64_t which, bool inside) {
    return UOp::make(Op::Attention, DType::F32, src,
                     to_ints(AttentionArg{which, true, 0.5, inside}));
  };
  EXPECT_EQ(shape(forward({q, k, v}, 0, false)), "[2, 3, 5, 6]");
  EXPECT_EQ(shape(forward({q, k, v}, 0, true)), "[2, 5, 3, 6]");
  EXPECT_EQ(shape(forward({q, k, v}, 1, false)), "[2, 3, 5, 1]");
  UOp y = forward({q, k, v}, 0, false), statistics = forward({q, k, v}, 1, false);
  auto backward = [&](const UOp& gradient, int64_t which, bool inside) {
    return UOp::make(Op::AttentionBackward, DType::F32, {q, k, v, y, statistics, gradient},
                     to_ints(AttentionArg{which, true, 0.5, inside}));
  };
  EXPECT_EQ(shape(backward(y, 0, false)), "[2, 3, 5, 8]");
  EXPECT_EQ(shape(backward(y, 1, true)), "[2, 7, 3, 8]");
  EXPECT_EQ(shape(backward(y, 2, false)), "[2, 3, 7, 6]");
  EXPECT_THROW(backward(q, 0, false), InternalError);
  EXPECT_THROW(backward(y, 3, false), InternalError);
  EXPECT_THROW(forward({q, v, k}, 0, false), InternalError);
  EXPECT_THROW(forward({q, k, buffer(4, {2, 1, 7, 6})}, 0, false), InternalError);
  EXPECT_THROW(forward({q, k, v}, 2, false), InternalError);
  UOp row = buffer(5, {5, 8});
  EXPECT_THROW(forward({row, row, row}, 0, true), InternalError);
}

TEST(Shapes, RefuseWhatDoesNotFit) {
  UOp x = buffer(1, {2, 3});
  EXPECT_THROW(reshape(x, Dims{7}), InternalError);
  EXPECT_THROW(expand(x, Dims{4, 3}), InternalError);
  EXPECT_THROW(expand(x, Dims{2, 3, 1}), InternalError);
  EXPECT_THROW(permute(x, Dims{0, 0}), InternalError);
  EXPECT_THROW(permute(x, Dims{1}), InternalError);
  EXPECT_THROW(pad(x, Dims{-1, 0, 0, 0}), InternalError);
  EXPECT_THROW(shrink(x, Dims{0, 3, 0, 3}), InternalError);
  EXPECT_THROW(shrink(x, Dims{2, 1, 0, 3}), InternalError);
  EXPECT_THROW(flip(x, Dims{2}), InternalError);
  EXPECT_THROW(reduce(ReduceOp::Sum, x, Dims{2}), InternalError);
  EXPECT_THROW(UOp::make(Op::Dot, DType::F32, {x, x}, Dims{0}), InternalError);
  EXPECT_THROW(UOp::make(Op::Gather, DType::F32, {x, buffer(2, {3, 3}, DType::I64)}, Dims{1}),
               InternalError);
}

TEST(Bounds, FollowIndexArithmetic) {
  UOp a = range(0, 5, RangeKind::Loop), b = range(1, 4, RangeKind::Loop);
  auto k = [](int64_t v) { return index_const(v); };
  auto expect = [](const UOp& x, int64_t low, int64_t high) {
    EXPECT_EQ(x->low, low) << print(x);
    EXPECT_EQ(x->high, high) << print(x);
  };
  expect(a, 0, 4);
  expect(range(2, 0, RangeKind::Loop), 0, 0);
  expect(k(-7), -7, -7);
  expect(UOp::make(Op::DeviceCoordinate, DType::Index, {}, Dims{0, 8}), 0, 7);
  expect(binary(Op::Add, a, b), 0, 7);
  expect(binary(Op::Sub, a, b), -3, 4);
  expect(unary(Op::Neg, a), -4, 0);
  expect(binary(Op::Mul, a, k(-3)), -12, 0);
  expect(binary(Op::Mul, binary(Op::Sub, a, k(2)), binary(Op::Sub, b, k(1))), -4, 4);
  expect(binary(Op::IDiv, binary(Op::Sub, a, k(3)), k(2)), -2, 0);
  expect(binary(Op::Mod, a, k(3)), 0, 2);
  expect(binary(Op::Mod, a, k(9)), 0, 4);
  expect(binary(Op::Mod, binary(Op::Sub, a, k(1)), k(9)), 0, 8);
  expect(binary(Op::Max, a, k(2)), 2, 4);
  UOp less = binary(Op::CmpLt, a, b);
  expect(where(less, k(-1), a), -1, 4);
  expect(cast(less, DType::Index), 0, 1);
  UOp far = k(int64_t{1} << 61);
  expect(binary(Op::Mul, far, k(100)), int64_t{1} << 62, int64_t{1} << 62);
}

}  // namespace
}  // namespace tinyshard::shape_test
