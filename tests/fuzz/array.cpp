// Types of the interpreter, their promotion and their rounding, from the definitions.
#include "tests/fuzz/array.h"

#include <cmath>
#include <cstring>

namespace fuzz {
namespace {

struct Row {
  std::string_view name;
  uint8_t bytes;
  char kind;            // b bool, s signed, u unsigned, f float
  int digits, largest;  // of floats: bits of the significand, exponent of the largest value
};

constexpr Row kRows[kTypes] = {
    {"bool", 1, 'b', 0, 0},   {"i8", 1, 's', 0, 0},     {"i16", 2, 's', 0, 0},
    {"i32", 4, 's', 0, 0},    {"i64", 8, 's', 0, 0},    {"u8", 1, 'u', 0, 0},
    {"u16", 2, 'u', 0, 0},    {"u32", 4, 'u', 0, 0},    {"u64", 8, 'u', 0, 0},
    {"f16", 2, 'f', 11, 15},  {"bf16", 2, 'f', 8, 127}, {"f32", 4, 'f', 24, 127},
    {"f64", 8, 'f', 53, 1023}};
const Row& row(Type type) { return kRows[size_t(type)]; }

uint64_t bits_of(Type type, const Element& e) {
  if (!is_float(type)) return uint64_t(e.n);
  uint64_t bits = 0;
  if (type == Type::F64) {
    std::memcpy(&bits, &e.v, 8);
    return bits;
  }
  float narrow = float(e.v);
  uint32_t word = 0;
  std::memcpy(&word, &narrow, 4);
  if (type == Type::F32) return word;
  if (type == Type::BF16) return std::isnan(e.v) ? 0x7fc0 : word >> 16;
  // f16: the value is one of the type, so nothing is rounded here.
  uint64_t sign = std::signbit(e.v) ? 0x8000 : 0;
  double m = std::abs(e.v);
  if (std::isnan(m)) return sign | 0x7e00;
  if (std::isinf(m)) return sign | 0x7c00;
  if (m < std::ldexp(1, -14)) return sign | uint64_t(std::ldexp(m, 24));
  int exponent = std::ilogb(m);
  return sign | uint64_t(exponent + 15) << 10 | (uint64_t(std::ldexp(m, 10 - exponent)) & 0x3ff);
}

Element from_bits(Type type, uint64_t bits) {
  Element e;
  if (!is_float(type)) {
    e.n = wrapped(type, int64_t(bits));
  } else if (type == Type::F64) {
    std::memcpy(&e.v, &bits, 8);
  } else if (type == Type::F16) {
    double m = double(bits & 0x3ff);
    int exponent = int(bits >> 10 & 31);
    e.v = exponent == 31  ? (m == 0 ? INFINITY : NAN)
          : exponent == 0 ? std::ldexp(m, -24)
                          : std::ldexp(1024 + m, exponent - 25);
    if (bits & 0x8000) e.v = -e.v;
  } else {
    uint32_t word = uint32_t(type == Type::BF16 ? bits << 16 : bits);
    float narrow = 0;
    std::memcpy(&narrow, &word, 4);
    e.v = narrow;
  }
  return e;
}

}  // namespace

std::string_view name(Type type) { return row(type).name; }
Type type_named(std::string_view text) {
  for (int i = 0; i < kTypes; ++i) {
    if (kRows[i].name == text) return Type(i);
  }
  throw Invalid("no such type");
}
size_t bytes(Type type) { return row(type).bytes; }
bool is_float(Type type) { return row(type).kind == 'f'; }
bool is_half(Type type) { return type == Type::F16 || type == Type::BF16; }
bool is_signed(Type type) { return row(type).kind == 's'; }
bool is_unsigned(Type type) { return row(type).kind == 'u'; }

Type promoted(Type a, Type b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  if (a == Type::Bool) return b;
  if (is_float(b)) {
    if (!is_float(a)) return b;
    return a == Type::F16 && b == Type::BF16 ? Type::F32 : b;
  }
  if (is_signed(a) == is_signed(b)) return b;  // the later one of a kind is the wider one
  // Signed with unsigned: the signed type that holds both, none for 64 bits.
  if (b == Type::U64) return a == Type::I64 ? Type::F32 : Type::F32;
  Type holds = b == Type::U8 ? Type::I16 : b == Type::U16 ? Type::I32 : Type::I64;
  return std::max(a, holds);
}
Type float_type(Type type) { return is_float(type) ? type : Type::F32; }
Type sum_type(Type type) {
  if (type == Type::Bool || type == Type::I8 || type == Type::I16) return Type::I32;
  if (type == Type::U8 || type == Type::U16) return Type::U32;
  return type;
}

int64_t count(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

Array::Array(Type t, Shape s) : type(t), shape(std::move(s)) {
  constexpr double kMost = 1e8;
  double n = 1;
  for (int64_t d : shape) need(d >= 0, "negative size"), n *= double(d);
  need(n < kMost, "too many elements");
  at.resize(size_t(n));
}

double rounded(Type type, double v) {
  if (!is_float(type) || type == Type::F64 || !std::isfinite(v) || v == 0) return v;
  const Row& r = row(type);
  // Steps of the binade of v, or of the subnormals below the smallest.
  int exponent = std::max(std::ilogb(v), 1 - r.largest);
  double step = std::ldexp(1, exponent - r.digits + 1);
  double out = std::nearbyint(v / step) * step;
  if (std::abs(out) >= std::ldexp(1, r.largest + 1)) return std::copysign(INFINITY, v);
  return out == 0 ? std::copysign(0.0, v) : out;
}

int64_t wrapped(Type type, int64_t n) {
  switch (type) {
    case Type::Bool:
      return n != 0;
    case Type::I8:
      return int8_t(n);
    case Type::I16:
      return int16_t(n);
    case Type::I32:
      return int32_t(n);
    case Type::U8:
      return uint8_t(n);
    case Type::U16:
      return uint16_t(n);
    case Type::U32:
      return uint32_t(n);
    default:
      return n;
  }
}

double as_double(Type type, int64_t n) {
  return type == Type::U64 ? double(uint64_t(n)) : double(n);
}

std::vector<std::byte> to_bytes(const Array& array) {
  size_t each = bytes(array.type);
  std::vector<std::byte> out(array.at.size() * each);
  for (size_t i = 0; i < array.at.size(); ++i) {
    uint64_t bits = bits_of(array.type, array.at[i]);
    std::memcpy(out.data() + i * each, &bits, each);
  }
  return out;
}

Array from_bytes(Type type, const Shape& shape, const std::vector<std::byte>& bytes_in) {
  Array out(type, shape);
  size_t each = bytes(type);
  if (bytes_in.size() != out.at.size() * each) throw Invalid("bytes do not fit the shape");
  for (size_t i = 0; i < out.at.size(); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes_in.data() + i * each, each);
    out.at[i] = from_bits(type, bits);
  }
  return out;
}

}  // namespace fuzz
