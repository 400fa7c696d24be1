#include "core/dtype/dtype.h"

#include <sstream>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard::dtype_test {
namespace {

TEST(DType, SizesAndKinds) {
  struct Row {
    DType d;
    const char* name;
    size_t bytes;
    bool is_float, is_signed, is_unsigned;
  };
  for (auto [d, n, bytes, fl, sg, us] : {Row{DType::Bool, "bool", 1, false, false, false},
                                         {DType::I8, "i8", 1, false, true, false},
                                         {DType::I16, "i16", 2, false, true, false},
                                         {DType::I32, "i32", 4, false, true, false},
                                         {DType::I64, "i64", 8, false, true, false},
                                         {DType::U8, "u8", 1, false, false, true},
                                         {DType::U16, "u16", 2, false, false, true},
                                         {DType::U32, "u32", 4, false, false, true},
                                         {DType::U64, "u64", 8, false, false, true},
                                         {DType::F16, "f16", 2, true, false, false},
                                         {DType::BF16, "bf16", 2, true, false, false},
                                         {DType::F32, "f32", 4, true, false, false},
                                         {DType::F64, "f64", 8, true, false, false}}) {
    EXPECT_EQ(name(d), n);
    EXPECT_EQ(itemsize(d), bytes) << n;
    EXPECT_EQ(is_float(d), fl) << n;
    EXPECT_EQ(is_signed_int(d), sg) << n;
    EXPECT_EQ(is_unsigned_int(d), us) << n;
    EXPECT_EQ(is_int(d), sg || us) << n;
    EXPECT_EQ(dtype_from_name(n), d);
  }
}

TEST(DType, NamesAndAliases) {
  for (auto [text, d] :
       std::initializer_list<std::pair<const char*, DType>>{{"float32", DType::F32},
                                                            {"F32", DType::F32},
                                                            {"float", DType::F32},
                                                            {"half", DType::F16},
                                                            {"bfloat16", DType::BF16},
                                                            {"double", DType::F64},
                                                            {"int", DType::I32},
                                                            {"long", DType::I64},
                                                            {"short", DType::I16},
                                                            {"char", DType::I8},
                                                            {"uchar", DType::U8},
                                                            {"ushort", DType::U16},
                                                            {"uint", DType::U32},
                                                            {"ulong", DType::U64},
                                                            {"Int8", DType::I8},
                                                            {"uint64", DType::U64},
                                                            {"bool", DType::Bool}}) {
    EXPECT_EQ(dtype_from_name(text), d) << text;
  }
  for (const char* text : {"", "f33", "index", "float3", "int 32"}) {
    try {
      dtype_from_name(text);
      ADD_FAILURE() << "accepted \"" << text << '"';
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find('"' + std::string(text) + '"'), std::string::npos)
          << e.what();
      EXPECT_NE(std::string(e.what()).find("bf16"), std::string::npos) << "lists what is known";
    }
  }
}

TEST(DType, PromotesByTheLattice) {
  // Rows and columns in the same order; the lattice is symmetric, half of it is enough to write but
  // all of it is easier to read.
  const char* table = R"(
      bool i8   i16  i32  i64  u8   u16  u32  u64  f16  bf16 f32  f64
bool  bool i8   i16  i32  i64  u8   u16  u32  u64  f16  bf16 f32  f64
i8    i8   i8   i16  i32  i64  i16  i32  i64  f32  f16  bf16 f32  f64
i16   i16  i16  i16  i32  i64  i16  i32  i64  f32  f16  bf16 f32  f64
i32   i32  i32  i32  i32  i64  i32  i32  i64  f32  f16  bf16 f32  f64
i64   i64  i64  i64  i64  i64  i64  i64  i64  f32  f16  bf16 f32  f64
u8    u8   i16  i16  i32  i64  u8   u16  u32  u64  f16  bf16 f32  f64
u16   u16  i32  i32  i32  i64  u16  u16  u32  u64  f16  bf16 f32  f64
u32   u32  i64  i64  i64  i64  u32  u32  u32  u64  f16  bf16 f32  f64
u64   u64  f32  f32  f32  f32  u64  u64  u64  u64  f16  bf16 f32  f64
f16   f16  f16  f16  f16  f16  f16  f16  f16  f16  f16  f32  f32  f64
bf16  bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 f32  bf16 f32  f64
f32   f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f64
f64   f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64
)";
  std::istringstream in(table);
  std::vector<std::string> columns(13);
  for (std::string& column : columns) in >> column;
  for (std::string row; in >> row;) {
    for (const std::string& column : columns) {
      std::string expected;
      in >> expected;
      DType a = dtype_from_name(row), b = dtype_from_name(column);
      EXPECT_EQ(name(promote(a, b)), expected) << row << " with " << column;
    }
  }
}

TEST(DType, PromotionIsALattice) {
  for (int i = 0; i < kDTypes - 1; ++i) {
    DType a = DType(i);
    EXPECT_EQ(promote(a, a), a);
    for (int j = 0; j < kDTypes - 1; ++j) {
      DType b = DType(j), both = promote(a, b);
      EXPECT_EQ(promote(b, a), both);
      EXPECT_EQ(promote(both, a), both);
      EXPECT_EQ(promote(both, b), both);
    }
  }
}

TEST(DType, SumsAndAccumulators) {
  EXPECT_EQ(sum_type(DType::Bool), DType::I32);
  EXPECT_EQ(sum_type(DType::I8), DType::I32);
  EXPECT_EQ(sum_type(DType::I16), DType::I32);
  EXPECT_EQ(sum_type(DType::I64), DType::I64);
  EXPECT_EQ(sum_type(DType::U8), DType::U32);
  EXPECT_EQ(sum_type(DType::U16), DType::U32);
  EXPECT_EQ(sum_type(DType::U64), DType::U64);
  EXPECT_EQ(sum_type(DType::F16), DType::F16);
  EXPECT_EQ(accumulator(DType::F16), DType::F32);
  EXPECT_EQ(accumulator(DType::BF16), DType::F32);
  EXPECT_EQ(accumulator(DType::F64), DType::F64);
  EXPECT_EQ(accumulator(DType::I8), DType::I32);
}

TEST(DType, OfCppTypes) {
  EXPECT_EQ(dtype_of<bool>(), DType::Bool);
  EXPECT_EQ(dtype_of<int8_t>(), DType::I8);
  EXPECT_EQ(dtype_of<uint16_t>(), DType::U16);
  EXPECT_EQ(dtype_of<int64_t>(), DType::I64);
  EXPECT_EQ(dtype_of<float>(), DType::F32);
  EXPECT_EQ(dtype_of<double>(), DType::F64);
}

}  // namespace
}  // namespace tinyshard::dtype_test
