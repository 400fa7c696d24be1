// Element types and the promotion lattice. The four types of 8 bits are those of the field's files:
// E4M3FN and E5M2 by OCP, the FNUZ ones have neither infinities nor -0. Index is the type of loop
// ranges and offsets inside kernels; it never reaches memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tinyshard {

enum class DType : uint8_t {
  Bool,
  I8,
  I16,
  I32,
  I64,
  U8,
  U16,
  U32,
  U64,
  F8E4M3FN,
  F8E5M2,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  F16,
  BF16,
  F32,
  F64,
  Index
};
inline constexpr int kDTypes = 18;

namespace dtypes {
inline constexpr DType boolean = DType::Bool, i8 = DType::I8, i16 = DType::I16, i32 = DType::I32,
                       i64 = DType::I64, u8 = DType::U8, u16 = DType::U16, u32 = DType::U32,
                       u64 = DType::U64, fp8e4m3 = DType::F8E4M3FN, fp8e5m2 = DType::F8E5M2,
                       fp8e4m3fnuz = DType::F8E4M3FNUZ, fp8e5m2fnuz = DType::F8E5M2FNUZ,
                       f16 = DType::F16, bf16 = DType::BF16, f32 = DType::F32, f64 = DType::F64;
}

size_t itemsize(DType dtype);        // bytes of one element
std::string_view name(DType dtype);  // "f32"
DType dtype_from_name(
    std::string_view);  // accepts f32, float32, float, F32...; UserError if unknown
constexpr bool is_float(DType dtype) { return dtype >= DType::F8E4M3FN && dtype <= DType::F64; }
constexpr bool is_float8(DType dtype) {
  return dtype >= DType::F8E4M3FN && dtype <= DType::F8E5M2FNUZ;
}
bool is_signed_int(DType dtype);
bool is_unsigned_int(DType dtype);  // Bool is not one of them
inline bool is_int(DType d) { return is_signed_int(d) || is_unsigned_int(d); }

// Smallest type that both convert to (tinygrad's lattice): ints with floats give the float,
// f16 with bf16 gives f32 and so do two types of 8 bits, i64 with u64 gives f32.
DType promote(DType a, DType b);

// The type in which sums of `dtype` are accumulated: narrow floats in f32, small ints in i32 / u32.
DType accumulator(DType dtype);
// The type of a.sum(): bool counts in i32, small ints widen to i32 / u32, floats stay.
DType sum_type(DType dtype);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<bool>() {
  return DType::Bool;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::I8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::I16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::I64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::U8;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::U16;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::U32;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::U64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::F64;
}

}  // namespace tinyshard
