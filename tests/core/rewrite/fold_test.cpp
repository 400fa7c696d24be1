#include "core/rewrite/fold.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/dtype/half.h"
#include "core/uop/args.h"

namespace tinyshard::fold_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

UOp i(DType d, int64_t v) { return const_int(d, v); }
UOp f(DType d, double v) { return const_float(d, v); }
UOp fold(Op op, DType d, std::initializer_list<UOp> src) {
  return fold_constants(op, d, std::span(src.begin(), src.size()));
}
int64_t integer(Op op, DType d, int64_t a, int64_t b) {
  return const_bits(*fold(op, d, {i(d, a), i(d, b)}));
}
double real(Op op, DType d, double a, double b) {
  return const_as_double(fold(op, d, {f(d, a), f(d, b)}));
}

template <class T>
void check_wrapping() {
  constexpr DType d = dtype_of<T>();
  using Wide = __int128;
  using Unsigned = unsigned __int128;
  std::vector<T> values{0,
                        1,
                        2,
                        3,
                        5,
                        7,
                        T(100),
                        std::numeric_limits<T>::max(),
                        std::numeric_limits<T>::min(),
                        T(-1),
                        T(-2),
                        T(-7)};
  auto wrap = [](Wide v) { return static_cast<int64_t>(static_cast<T>(v)); };
  for (T a : values) {
    for (T b : values) {
      EXPECT_EQ(integer(Op::Add, d, a, b), wrap(Wide(a) + b)) << name(d);
      EXPECT_EQ(integer(Op::Sub, d, a, b), wrap(Wide(a) - b)) << name(d);
      EXPECT_EQ(integer(Op::Mul, d, a, b), wrap(static_cast<Wide>(Unsigned(a) * Unsigned(b))))
          << name(d);
      EXPECT_EQ(integer(Op::Max, d, a, b), wrap(std::max(a, b))) << name(d);
      EXPECT_EQ(integer(Op::And, d, a, b), wrap(a & b)) << name(d);
      EXPECT_EQ(integer(Op::Or, d, a, b), wrap(a | b)) << name(d);
      EXPECT_EQ(integer(Op::Xor, d, a, b), wrap(a ^ b)) << name(d);
      EXPECT_EQ(integer(Op::IDiv, d, a, b), b == 0 ? 0 : wrap(Wide(a) / b))
          << name(d) << +a << " " << +b;
      EXPECT_EQ(integer(Op::Mod, d, a, b), b == 0 ? 0 : wrap(Wide(a) % b))
          << name(d) << +a << " " << +b;
      EXPECT_EQ(const_bits(*fold(Op::CmpLt, DType::Bool, {i(d, a), i(d, b)})), a < b) << name(d);
      EXPECT_EQ(const_bits(*fold(Op::CmpEq, DType::Bool, {i(d, a), i(d, b)})), a == b) << name(d);
      EXPECT_EQ(const_bits(*fold(Op::CmpNe, DType::Bool, {i(d, a), i(d, b)})), a != b) << name(d);
    }
    EXPECT_EQ(const_bits(*fold(Op::Neg, d, {i(d, a)})), wrap(-Wide(a))) << name(d);
    EXPECT_EQ(const_bits(*fold(Op::Not, d, {i(d, a)})), wrap(~Wide(a))) << name(d);
    int bits = static_cast<int>(sizeof(T) * 8);
    for (int s : {0, 1, bits - 1}) {
      EXPECT_EQ(integer(Op::Shl, d, a, s), wrap(Wide(a) * (Wide(1) << s))) << name(d) << s;
      EXPECT_EQ(integer(Op::Shr, d, a, s), wrap(a >> s)) << name(d) << s;
    }
    EXPECT_EQ(integer(Op::Shl, d, a, bits), 0) << name(d);
    EXPECT_EQ(integer(Op::Shr, d, a, bits), 0) << name(d);
    if (is_signed_int(d)) {
      EXPECT_EQ(integer(Op::Shr, d, a, -1), 0) << name(d);
    }
  }
}

TEST(FoldIntegers, WrapAndTruncate) {
  check_wrapping<int8_t>();
  check_wrapping<int16_t>();
  check_wrapping<int32_t>();
  check_wrapping<int64_t>();
  check_wrapping<uint8_t>();
  check_wrapping<uint16_t>();
  check_wrapping<uint32_t>();
  check_wrapping<uint64_t>();
}

TEST(FoldIndex, DividesDownwards) {
  EXPECT_EQ(integer(Op::IDiv, DType::Index, -7, 2), -4);
  EXPECT_EQ(integer(Op::Mod, DType::Index, -7, 2), 1);
  EXPECT_EQ(integer(Op::IDiv, DType::Index, 7, -2), -4);
  EXPECT_EQ(integer(Op::Mod, DType::Index, 7, -2), -1);
  EXPECT_EQ(integer(Op::IDiv, DType::I32, -7, 2), -3);
  EXPECT_EQ(integer(Op::Mod, DType::I32, -7, 2), -1);
  EXPECT_FALSE(fold(Op::IDiv, DType::Index, {index_const(1), index_const(0)}));
  int64_t far = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(fold(Op::Add, DType::Index, {index_const(far), index_const(1)}));
}

TEST(FoldBool, AddIsOrMulIsAnd) {
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 2; ++b) {
      DType d = DType::Bool;
      EXPECT_EQ(integer(Op::Add, d, a, b), a | b);
      EXPECT_EQ(integer(Op::Max, d, a, b), a | b);
      EXPECT_EQ(integer(Op::Or, d, a, b), a | b);
      EXPECT_EQ(integer(Op::Mul, d, a, b), a & b);
      EXPECT_EQ(integer(Op::And, d, a, b), a & b);
      EXPECT_EQ(integer(Op::Xor, d, a, b), a ^ b);
      EXPECT_EQ(integer(Op::CmpLt, d, a, b), a < b);
    }
    EXPECT_EQ(const_bits(*fold(Op::Not, DType::Bool, {i(DType::Bool, a)})), 1 - a);
  }
}

TEST(FoldFloats, RoundsToTheType) {
  EXPECT_EQ(real(Op::Add, DType::F32, 0.1f, 0.2f), static_cast<double>(0.1f + 0.2f));
  EXPECT_EQ(real(Op::Add, DType::F64, 0.1, 0.2), 0.1 + 0.2);
  EXPECT_EQ(real(Op::Add, DType::F32, 16777216, 1), 16777216);  // the f32 grid
  EXPECT_EQ(real(Op::Add, DType::F16, 2048, 1), 2048);          // the f16 grid
  EXPECT_EQ(real(Op::Add, DType::BF16, 256, 1), 256);           // the bf16 grid
  EXPECT_EQ(real(Op::Mul, DType::F32, 3e38, 10), kInf);
  EXPECT_EQ(real(Op::Mul, DType::F16, 60000, 2), kInf);
  EXPECT_EQ(real(Op::Div, DType::F32, 1, 3), static_cast<double>(1.0f / 3.0f));
  EXPECT_EQ(real(Op::Div, DType::F32, 1, 0), kInf);
  EXPECT_TRUE(std::isnan(real(Op::Mul, DType::F32, 0, kInf)));
  EXPECT_EQ(const_as_double(fold(Op::Sqrt, DType::F32, {f(DType::F32, 2)})),
            static_cast<double>(std::sqrt(2.0f)));
  EXPECT_EQ(const_as_double(fold(Op::Exp2, DType::F32, {f(DType::F32, 0.5)})),
            static_cast<double>(static_cast<float>(std::exp2(0.5))));
  EXPECT_EQ(const_as_double(fold(Op::Log2, DType::F32, {f(DType::F32, 0)})), -kInf);
  EXPECT_EQ(const_as_double(fold(Op::Trunc, DType::F64, {f(DType::F64, -1.7)})), -1);
  EXPECT_EQ(const_as_double(fold(Op::Recip, DType::F32, {f(DType::F32, 3)})),
            static_cast<double>(1.0f / 3.0f));
  EXPECT_TRUE(std::signbit(const_as_double(fold(Op::Neg, DType::F32, {f(DType::F32, 0)}))));
  EXPECT_NEAR(const_as_double(fold(Op::Sin, DType::F64, {f(DType::F64, 1)})), 0.8414709848, 1e-9);
}

TEST(FoldFloats, NaNIsInMaxAndOutsideOfComparisons) {
  DType d = DType::F32;
  EXPECT_TRUE(std::isnan(real(Op::Max, d, kNaN, 1)));
  EXPECT_TRUE(std::isnan(real(Op::Max, d, 1, kNaN)));
  EXPECT_EQ(real(Op::Max, d, 1, 2), 2);
  EXPECT_FALSE(fold(Op::Max, d, {f(d, 0.0), f(d, -0.0)})) << "which zero is not defined";
  EXPECT_EQ(const_bits(*fold(Op::CmpLt, DType::Bool, {f(d, kNaN), f(d, 1)})), 0);
  EXPECT_EQ(const_bits(*fold(Op::CmpEq, DType::Bool, {f(d, kNaN), f(d, kNaN)})), 0);
  EXPECT_EQ(const_bits(*fold(Op::CmpNe, DType::Bool, {f(d, kNaN), f(d, kNaN)})), 1);
  EXPECT_EQ(const_bits(*fold(Op::CmpEq, DType::Bool, {f(d, 0.0), f(d, -0.0)})), 1);
}

TEST(FoldCast, WrapsIntegersAndSaturatesFloats) {
  auto to = [](const UOp& x, DType d) { return fold(Op::Cast, d, {x}); };
  EXPECT_EQ(const_bits(*to(i(DType::I32, 300), DType::U8)), 44);
  EXPECT_EQ(const_bits(*to(i(DType::I32, 200), DType::I8)), -56);
  EXPECT_EQ(const_bits(*to(i(DType::I8, -1), DType::U32)), 0xffffffff);
  EXPECT_EQ(const_bits(*to(f(DType::F32, 300.7), DType::U8)), 255);
  EXPECT_EQ(const_bits(*to(f(DType::F32, -3.7), DType::U8)), 0);
  EXPECT_EQ(const_bits(*to(f(DType::F32, -3.7), DType::I8)), -3);
  EXPECT_EQ(const_bits(*to(f(DType::F32, -300), DType::I8)), -128);
  EXPECT_EQ(const_bits(*to(f(DType::F32, kNaN), DType::I32)), 0);
  EXPECT_EQ(const_bits(*to(f(DType::F64, 1e30), DType::I64)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(const_bits(*to(f(DType::F64, -1e30), DType::I64)), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(const_bits(*to(f(DType::F64, 1.5e19), DType::U64)),
            static_cast<int64_t>(15000000000000000000u));
  EXPECT_EQ(const_bits(*to(f(DType::F64, 1e30), DType::U64)), -1);
  EXPECT_EQ(const_bits(*to(f(DType::F32, 0.5), DType::Bool)), 1);
  EXPECT_EQ(const_bits(*to(f(DType::F32, -0.0), DType::Bool)), 0);
  EXPECT_EQ(const_bits(*to(i(DType::I32, 256), DType::Bool)), 1);
  EXPECT_EQ(const_as_double(to(i(DType::I32, 16777217), DType::F32)), 16777216);
  EXPECT_EQ(const_as_double(to(i(DType::U64, -1), DType::F64)), 18446744073709551616.0);
  EXPECT_EQ(const_as_double(to(f(DType::F64, 0.1), DType::F32)), static_cast<double>(0.1f));
  // Once, not by way of f32: 1 + 2^-11 + 2^-30 is above the middle of two f16 numbers.
  EXPECT_EQ(const_as_double(to(f(DType::F64, 1 + 0x1p-11 + 0x1p-30), DType::F16)), 1 + 0x1p-10);
  EXPECT_EQ(const_as_double(to(f(DType::F64, 1 + 0x1p-11), DType::F16)), 1);
  EXPECT_EQ(const_as_double(to(f(DType::F64, 1e300), DType::F16)), kInf);
}

TEST(FoldBitcast, KeepsBits) {
  auto to = [](const UOp& x, DType d) { return fold(Op::Bitcast, d, {x}); };
  EXPECT_EQ(const_bits(*to(f(DType::F32, 1), DType::I32)), 0x3f800000);
  EXPECT_EQ(const_as_double(to(i(DType::U32, 0xc0000000), DType::F32)), -2);
  EXPECT_EQ(const_bits(*to(f(DType::F16, -2), DType::U16)), 0xc000);
  EXPECT_EQ(const_bits(*to(f(DType::BF16, 1), DType::I16)), 0x3f80);
  EXPECT_EQ(const_bits(*to(i(DType::I32, -1), DType::U32)), 0xffffffff);
  EXPECT_FALSE(to(i(DType::U32, 0x7fc00000), DType::F32)) << "a NaN keeps no payload";
}

TEST(FoldThreefry, MatchesThePublishedVectors) {
  // Random123's known answers for threefry2x32, 20 rounds: counter, key, result.
  uint64_t vectors[][3] = {
      {0, 0, uint64_t{0x99ba4efe} << 32 | 0x6b200159},
      {~uint64_t{0}, ~uint64_t{0}, uint64_t{0xbb002be7} << 32 | 0x1cb996fc},
      {uint64_t{0x85a308d3} << 32 | 0x243f6a88, uint64_t{0x03707344} << 32 | 0x13198a2e,
       uint64_t{0x483df7a0} << 32 | 0xc4923a9c},
  };
  for (auto [counter, key, expected] : vectors) {
    UOp r = fold(
        Op::Threefry, DType::U64,
        {i(DType::U64, static_cast<int64_t>(counter)), i(DType::U64, static_cast<int64_t>(key))});
    EXPECT_EQ(static_cast<uint64_t>(const_bits(*r)), expected) << std::hex << const_bits(*r);
  }
}

TEST(Fold, KeepsTheShapeAndNeedsConstants) {
  Dims shape{2, 3};
  UOp a = const_int(DType::I32, 2, shape), b = const_int(DType::I32, 3, shape);
  EXPECT_EQ(fold(Op::Add, DType::I32, {a, b}), const_int(DType::I32, 5, shape));
  EXPECT_EQ(fold(Op::CmpLt, DType::Bool, {a, b}), const_int(DType::Bool, 1, shape));
  UOp buffer = UOp::make(Op::Buffer, DType::I32, {}, Dims{1, 2, 3});
  EXPECT_FALSE(fold(Op::Add, DType::I32, {a, buffer}));
  UOp yes = const_int(DType::Bool, 1, shape);
  EXPECT_EQ(fold(Op::Where, DType::I32, {yes, a, b}), a);
}

}  // namespace
}  // namespace tinyshard::fold_test
