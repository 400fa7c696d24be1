// Each element type has one row here. Promotion follows the types above it: two types become the
// smallest one that both lead up to.
//
//   i32 and f16      i32 leads to i64, that to the halves: f16
//   f16 and bf16     neither leads to the other, both lead to f32
#include "core/dtype/dtype.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"

namespace tinyshard {
namespace {

enum class Kind : uint8_t { Bool, Signed, Unsigned, Float, Index };

struct Row {
  std::string_view name, long_name;
  uint8_t bytes;
  Kind kind;
  uint32_t above;  // bit set of the types directly above in the promotion lattice
};

constexpr uint32_t bit(DType d) { return 1u << int(d); }
constexpr uint32_t kHalves = bit(DType::F16) | bit(DType::BF16);
constexpr uint32_t kFloat8s =
    bit(DType::F8E4M3FN) | bit(DType::F8E5M2) | bit(DType::F8E4M3FNUZ) | bit(DType::F8E5M2FNUZ);

constexpr std::array<Row, kDTypes> kRows = {{
    {"bool", "bool", 1, Kind::Bool, bit(DType::I8) | bit(DType::U8)},
    {"i8", "int8", 1, Kind::Signed, bit(DType::I16)},
    {"i16", "int16", 2, Kind::Signed, bit(DType::I32)},
    {"i32", "int32", 4, Kind::Signed, bit(DType::I64)},
    {"i64", "int64", 8, Kind::Signed, kFloat8s},
    {"u8", "uint8", 1, Kind::Unsigned, bit(DType::I16) | bit(DType::U16)},
    {"u16", "uint16", 2, Kind::Unsigned, bit(DType::I32) | bit(DType::U32)},
    {"u32", "uint32", 4, Kind::Unsigned, bit(DType::I64) | bit(DType::U64)},
    {"u64", "uint64", 8, Kind::Unsigned, kFloat8s},
    {"f8e4m3fn", "float8_e4m3fn", 1, Kind::Float, kHalves},
    {"f8e5m2", "float8_e5m2", 1, Kind::Float, kHalves},
    {"f8e4m3fnuz", "float8_e4m3fnuz", 1, Kind::Float, kHalves},
    {"f8e5m2fnuz", "float8_e5m2fnuz", 1, Kind::Float, kHalves},
    {"f16", "float16", 2, Kind::Float, bit(DType::F32)},
    {"bf16", "bfloat16", 2, Kind::Float, bit(DType::F32)},
    {"f32", "float32", 4, Kind::Float, bit(DType::F64)},
    {"f64", "float64", 8, Kind::Float, 0},
    {"index", "index", 8, Kind::Index, bit(DType::I64)},
}};

static_assert(std::ranges::all_of(kRows, [](const Row& row) {
  return is_float(DType(&row - kRows.data())) == (row.kind == Kind::Float);
}));

const Row& row(DType d) {
  if (static_cast<size_t>(d) >= kRows.size())
    fail(fmt::format("DType({}) is no element type", static_cast<int>(d)));
  return kRows[static_cast<size_t>(d)];
}

uint32_t up_closure(DType d) {
  uint32_t seen = bit(d);
  for (bool grew = true; grew;) {
    grew = false;
    for (int i = 0; i < kDTypes; ++i) {
      if ((seen >> i) & 1u && (seen | kRows[i].above) != seen) seen |= kRows[i].above, grew = true;
    }
  }
  return seen;
}

}  // namespace

size_t itemsize(DType d) { return row(d).bytes; }
std::string_view name(DType d) { return row(d).name; }
bool is_signed_int(DType d) { return row(d).kind == Kind::Signed; }
bool is_unsigned_int(DType d) { return row(d).kind == Kind::Unsigned; }

DType dtype_from_name(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  for (int i = 0; i < kDTypes - 1; ++i) {
    if (lower == kRows[i].name || lower == kRows[i].long_name) return static_cast<DType>(i);
  }
  static constexpr std::pair<std::string_view, DType> kAliases[] = {
      {"float", DType::F32},
      {"double", DType::F64},
      {"half", DType::F16},
      {"int", DType::I32},
      {"long", DType::I64},
      {"short", DType::I16},
      {"char", DType::I8},
      {"uchar", DType::U8},
      {"uint", DType::U32},
      {"ulong", DType::U64},
      {"ushort", DType::U16},
      {"f8e4m3", DType::F8E4M3FN},
      {"f8_e4m3", DType::F8E4M3FN},
      {"fp8e4m3", DType::F8E4M3FN},
      {"f8_e5m2", DType::F8E5M2},
      {"fp8e5m2", DType::F8E5M2},
      {"fp8e4m3fnuz", DType::F8E4M3FNUZ},
      {"fp8e5m2fnuz", DType::F8E5M2FNUZ}};
  for (auto [alias, d] : kAliases) {
    if (lower == alias) return d;
  }
  throw UserError(fmt::format(
      "unknown dtype \"{}\"; known: bool i8 i16 i32 i64 u8 u16 u32 u64 f8e4m3fn f8e5m2 f8e4m3fnuz "
      "f8e5m2fnuz f16 bf16 f32 f64",
      text));
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  static const auto table = [] {
    std::array<std::array<DType, kDTypes>, kDTypes> t{};
    for (int i = 0; i < kDTypes; ++i) {
      for (int j = 0; j < kDTypes; ++j) {
        uint32_t common = up_closure(DType(i)) & up_closure(DType(j));
        t[i][j] = DType::F32;  // i64 with u64 has no smallest common type: the default float
        for (int k = 0; k < kDTypes; ++k) {  // the smallest: the one that reaches all the others
          if ((common >> k) & 1u && (up_closure(DType(k)) & common) == common) t[i][j] = DType(k);
        }
      }
    }
    return t;
  }();
  row(a), row(b);  // both exist
  return table[static_cast<size_t>(a)][static_cast<size_t>(b)];
}

DType accumulator(DType d) {
  if (is_float8(d) || d == DType::F16 || d == DType::BF16) return DType::F32;
  return sum_type(d);
}

DType sum_type(DType d) {
  if (d == DType::Bool || d == DType::I8 || d == DType::I16) return DType::I32;
  if (d == DType::U8 || d == DType::U16) return DType::U32;
  return d;
}

}  // namespace tinyshard
