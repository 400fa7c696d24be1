// Tensor methods accept these besides tensors: numbers, lists of sizes, axes, slices and indices,
// each converting from what one would write. Types that operators take also remember the line that
// wrote them, because an operator has no room for a defaulted source_location.
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dtype/dtype.h"
#include "core/uop/uop.h"

namespace tinyshard {

class Tensor;
class Variable;
class TensorState;
using Caller = std::source_location;

template <class T>
concept Number = std::is_arithmetic_v<T>;

// A number without a type of its own: it takes the type of the tensor that it meets, except that a
// float makes an integer tensor default_float() and an integer makes a bool tensor i32. An integer
// that the type does not hold is a UserError, but comparisons take it as the number that it is:
// every u8 is > -1 and < 2.5e9. What a float loses on its way into an integer type is its fraction.
struct Scalar {
  enum class Kind : uint8_t { Bool, Int, Float } kind = Kind::Int;
  int64_t integer = 0;
  double real = 0;

  constexpr Scalar() = default;
  template <Number T>
  constexpr Scalar(T value)  // NOLINT(google-explicit-constructor)
      : kind(std::is_same_v<T, bool>       ? Kind::Bool
             : std::is_floating_point_v<T> ? Kind::Float
                                           : Kind::Int),
        integer(integer_of(value)),
        real(static_cast<double>(value)) {}
  constexpr bool is_float() const { return kind == Kind::Float; }
  // Tells whether `integer` holds the bits of a number from 2^63 on.
  constexpr bool is_beyond_i64() const { return kind == Kind::Int && integer < 0 && real > 0; }

 private:
  template <Number T>
  static constexpr int64_t integer_of(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      return value >= -0x1p63 && value < 0x1p63 ? static_cast<int64_t>(value) : 0;
    } else {
      return static_cast<int64_t>(value);
    }
  }
};

// A side of a binary operation: a tensor or a variable (borrowed for the call), or a number.
struct Operand {
  const Tensor* tensor = nullptr;
  Scalar scalar;
  Caller caller;

  Operand(const Tensor& t, Caller c = Caller::current()) : tensor(&t), caller(c) {}  // NOLINT
  Operand(const Variable& v, Caller c = Caller::current());                          // NOLINT
  template <Number T>
  Operand(T value, Caller c = Caller::current()) : scalar(value), caller(c) {}       // NOLINT
  Operand(Scalar value, Caller c = Caller::current()) : scalar(value), caller(c) {}  // NOLINT
};

// A list of integers: a shape, an order, strides. A single number is a list of one, but remembers
// how it was written: a kernel of 2 is square, a kernel of {2} has one dim.
struct Ints {
  Dims values;
  bool one_number = false;

  Ints() = default;
  template <std::integral T>
  Ints(T value) : values{static_cast<int64_t>(value)}, one_number(true) {}  // NOLINT
  Ints(std::initializer_list<int64_t> list) : values(list) {}               // NOLINT
  Ints(Dims list) : values(std::move(list)) {}                              // NOLINT
  Ints(DimSpan list) : values(list.begin(), list.end()) {}                  // NOLINT
  size_t size() const { return values.size(); }
  int64_t operator[](size_t i) const { return values[i]; }
};

// A size or an axis of several that are written without braces, as in x.reshape(2, 3).
struct ListItem {
  int64_t value;
  Caller caller;
  template <std::integral T>
  ListItem(T v, Caller c = Caller::current())  // NOLINT(google-explicit-constructor)
      : value(static_cast<int64_t>(v)), caller(c) {}
};

// Axes of a reduction: x.sum() is over all, x.sum(-1) over the last, x.sum({0, 2}) over two.
struct Axes {
  bool all = true;
  Dims values;

  Axes() = default;
  template <std::integral T>
  Axes(T axis) : all(false), values{static_cast<int64_t>(axis)} {}         // NOLINT
  Axes(std::initializer_list<int64_t> list) : all(false), values(list) {}  // NOLINT
  Axes(Dims list) : all(false), values(std::move(list)) {}                 // NOLINT
};

// (before, after) for pad, [low, high) for shrink; one pair per dim.
using Pairs = std::vector<std::pair<int64_t, int64_t>>;

// A Variable, or what was computed from some by adding and by multiplying with numbers.
template <class T>
concept SizeExpression = std::same_as<T, Tensor> || std::same_as<T, Variable>;
std::shared_ptr<TensorState> size_state(const Tensor& size);
std::shared_ptr<TensorState> size_state(const Variable& size);

// start:stop:step of an index; a missing end is the end of the dim. A stop that is known when a
// captured step runs, Slice(0, pos + 1), makes a dim of that size: see docs/decode.md. One that
// begins at such a place, Slice(pos, pos + 8), is as long as the difference, which is a number.
struct Slice {
  std::optional<int64_t> start, stop;
  int64_t step = 1;
  std::shared_ptr<TensorState> symbolic_start, symbolic_stop;
  Slice() = default;
  Slice(std::optional<int64_t> first, std::optional<int64_t> last, int64_t by = 1)
      : start(first), stop(last), step(by) {}
  template <SizeExpression T>
  Slice(std::optional<int64_t> first, const T& last)
      : start(first), symbolic_stop(size_state(last)) {}
  template <SizeExpression T, SizeExpression U>
  Slice(const T& first, const U& last)
      : symbolic_start(size_state(first)), symbolic_stop(size_state(last)) {}
  template <SizeExpression T>
  Slice(const T& first, std::optional<int64_t> last)
      : stop(last), symbolic_start(size_state(first)) {}
};
struct NewAxis {};
struct Ellipsis {};
inline constexpr NewAxis kNewAxis{};
inline constexpr Ellipsis kEllipsis{};

// An entry of x[{...}]: a number, a variable, a Slice, kNewAxis, kEllipsis, or a tensor of
// integers or bools, which it holds: a list of indices may outlive the tensors that it was made of.
struct Index {
  enum class Kind : uint8_t { Number, Slice, NewAxis, Ellipsis, Tensor } kind;
  int64_t number = 0;
  Slice slice;
  std::shared_ptr<TensorState> tensor;
  Caller caller;

  template <std::integral T>
  Index(T i, Caller c = Caller::current())  // NOLINT
      : kind(Kind::Number), number(static_cast<int64_t>(i)), caller(c) {}
  Index(Slice s, Caller c = Caller::current())
      : kind(Kind::Slice), slice(s), caller(c) {}                                     // NOLINT
  Index(NewAxis, Caller c = Caller::current()) : kind(Kind::NewAxis), caller(c) {}    // NOLINT
  Index(Ellipsis, Caller c = Caller::current()) : kind(Kind::Ellipsis), caller(c) {}  // NOLINT
  Index(const Tensor& t, Caller c = Caller::current());                               // NOLINT
  Index(const Variable& v, Caller c = Caller::current());                             // NOLINT
};

// Numbers in nested braces: Tensor{{1, 2}, {3, 4}}.
struct Nested {
  Scalar leaf;
  bool is_leaf = true;
  std::vector<Nested> items;
  Caller caller;

  template <Number T>
  Nested(T value, Caller c = Caller::current()) : leaf(value), caller(c) {}  // NOLINT
  Nested(std::initializer_list<Nested> list, Caller c = Caller::current())   // NOLINT
      : is_leaf(false), items(list), caller(c) {}
};

// --- options of the longer methods ---------------------------------------------------------------

enum class Rounding : uint8_t { None, Trunc, Floor };
enum class Reduction : uint8_t { Mean, Sum, None };
enum class PadMode : uint8_t { Constant, Reflect, Replicate, Circular };
enum class ScatterReduce : uint8_t { Sum, Prod, Mean, Amax, Amin };
enum class Interpolation : uint8_t { Linear, Nearest, NearestExact };

// Padding is one number, one per spatial dim, or (before, after) per spatial dim from the last dim
// to the first.
struct ConvOptions {
  int64_t groups = 1;
  Ints stride = 1, dilation = 1, padding = 0;
  std::optional<DType> dtype = {};  // of the sums and the result; sums of 16-bit floats are f32
};

struct ConvTransposeOptions {
  int64_t groups = 1;
  Ints stride = 1, dilation = 1, padding = 0, output_padding = 0;
};

// A single number is for every dim of the kernel.
struct PoolOptions {
  Ints stride = {};  // none: the kernel's size
  Ints dilation = 1, padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;  // of averages
};

struct AttentionOptions {
  double dropout_p = 0;
  bool is_causal = false;
  bool enable_gqa = false;  // fewer heads of key and value than of query
};

struct CrossEntropyOptions {
  // Labels of this value add no loss and do not count in the mean: {.ignore_index = -100}. Not for
  // probabilities.
  std::optional<int64_t> ignore_index = {};
  double label_smoothing = 0;
  Reduction reduction = Reduction::Mean;
};

}  // namespace tinyshard
