// Arrays of the interpreter: elements in row-major order, each with a bound on how far a right
// answer may lie from it. Nothing here comes from the library: what is compared shares no code.
//
//   f32 [2]:  {0.8414709848, err 6e-8}, {0.9092974268, err 6e-8}      sin of {1, 2}
#pragma once
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

enum class Type : uint8_t { Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64 };
inline constexpr int kTypes = 13;

std::string_view name(Type type);  // "f32"
Type type_named(std::string_view name);
size_t bytes(Type type);
bool is_float(Type type);
bool is_half(Type type);
bool is_signed(Type type);
bool is_unsigned(Type type);
inline bool is_int(Type type) { return is_signed(type) || is_unsigned(type); }
// The type of an operation on two tensors, of a float function of one, of a sum.
Type promoted(Type a, Type b);
Type float_type(Type type);
Type sum_type(Type type);

using Shape = std::vector<int64_t>;
int64_t count(const Shape& shape);

inline constexpr double kUnknown = std::numeric_limits<double>::infinity();

// `v` of floats, `n` of integers (modulo 2^64) and bools. A right answer lies within err of it;
// kUnknown where any answer may be right, as the smaller of two values that rounding may swap.
struct Element {
  double v = 0;
  int64_t n = 0;
  double err = 0;
  bool known() const { return err != kUnknown; }
};

struct Array {
  Type type = Type::F32;
  Shape shape;
  std::vector<Element> at;

  Array() = default;
  Array(Type t, Shape s);  // Invalid where a size is negative, or all are far too many
  int64_t rank() const { return int64_t(shape.size()); }
};

// A program that says nothing: an axis that is not there, shapes that do not fit.
struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void need(bool holds, const char* what) {
  if (!holds) throw Invalid(what);
}

// The nearest value of the type, ties to even; infinity beyond the largest.
double rounded(Type type, double v);
// An integer modulo the size of its type.
int64_t wrapped(Type type, int64_t n);
double as_double(Type type, int64_t n);

// Elements as they lie in memory, and back (err 0).
std::vector<std::byte> to_bytes(const Array& array);
Array from_bytes(Type type, const Shape& shape, const std::vector<std::byte>& bytes);

}  // namespace fuzz
