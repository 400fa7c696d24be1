// Floats are computed in f64 and rounded to f32, then to the type: sums, products,
// quotients and roots of f32 numbers have the bits of f32 arithmetic that way. An
// op on indices that would wrap is not folded, as the algebra of indices has no
// wrapping. A reduction of n equal integers takes log2(n) steps, by doubling.
#include "core/rewrite/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/dtype/half.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

// --- floats --------------------------------------------------------------------------------------

UOp float_result(DType dtype, double value, DimSpan shape) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  return const_float(dtype, value, shape);
}

UOp fold_float(Op op, DType dtype, double a, double b, DimSpan shape) {
  const OnReals compute = info(op).element.reals;
  // Which of +0 and -0 is the larger is not defined.
  if (!compute || (op == Op::Max && a == b && std::signbit(a) != std::signbit(b))) return {};
  const double value = compute(a, b);
  if (dtype == DType::Bool) return const_int(dtype, value != 0, shape);
  // The narrower types are computed in f32. Of what f32 holds a sum, product, quotient or root is
  // the same whether f64 lies between or not.
  return float_result(dtype, dtype == DType::F64 ? value : rounded_to(DType::F32, value), shape);
}

// --- integers ------------------------------------------------------------------------------------

// Tells whether an index would wrap, or is divided by what only a wrong program divides by: the
// algebra of indices takes them for the integers of mathematics.
bool leaves_index(Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case Op::Neg:
      return __builtin_sub_overflow(int64_t{0}, a, &r);
    case Op::Add:
      return __builtin_add_overflow(a, b, &r);
    case Op::Sub:
      return __builtin_sub_overflow(a, b, &r);
    case Op::Mul:
      return __builtin_mul_overflow(a, b, &r);
    case Op::IDiv:
    case Op::Mod:
      return b == 0 || b == -1;
    default:
      return false;
  }
}

UOp fold_integer(Op op, DType dtype, DType type, int64_t a, int64_t b, DimSpan shape) {
  const OnIntegers compute = info(op).element.integers;
  if (!compute || (type == DType::Index && leaves_index(op, a, b))) return {};
  const uint64_t value =
      compute(integer_kind(type), static_cast<uint64_t>(a), static_cast<uint64_t>(b));
  return const_int(dtype, static_cast<int64_t>(value), shape);
}

// --- conversions ---------------------------------------------------------------------------------

int64_t saturate(double value, DType to) {
  if (std::isnan(value)) return 0;
  value = std::trunc(value);
  int bits = static_cast<int>(itemsize(to) * 8);
  if (is_unsigned_int(to)) {
    if (value <= 0) return 0;
    uint64_t most = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
    if (value >= std::ldexp(1.0, bits)) return static_cast<int64_t>(most);
    return static_cast<int64_t>(static_cast<uint64_t>(value));
  }
  int64_t most = static_cast<int64_t>((uint64_t{1} << (bits - 1)) - 1);
  if (value >= std::ldexp(1.0, bits - 1)) return most;
  if (value <= -std::ldexp(1.0, bits - 1)) return -most - 1;
  return static_cast<int64_t>(value);
}

UOp fold_cast(const UOp& x, DType to) {
  DType from = x.dtype();
  if (is_float(from)) {
    double value = const_as_double(x);
    if (is_float(to)) return float_result(to, value, x.shape());
    if (to == DType::Bool) return const_int(to, value != 0, x.shape());
    return const_int(to, saturate(value, to), x.shape());
  }
  int64_t value = const_bits(*x);
  if (!is_float(to)) return const_int(to, value, x.shape());
  double rounded = from == DType::U64 ? rounded_integer(to, static_cast<uint64_t>(value))
                                      : rounded_integer(to, value);
  return const_float(to, rounded, x.shape());
}

std::optional<uint64_t> raw_bits(const UOp& x) {
  if (!is_float(x.dtype())) return static_cast<uint64_t>(const_bits(*x));
  double value = const_as_double(x);
  if (std::isnan(value)) return std::nullopt;  // which of the many NaNs is not kept
  if (is_narrow(x.dtype())) return f64_to_narrow(x.dtype(), value);
  if (x.dtype() == DType::F32) return std::bit_cast<uint32_t>(static_cast<float>(value));
  return std::bit_cast<uint64_t>(value);
}

UOp fold_bitcast(const UOp& x, DType to) {
  if (itemsize(x.dtype()) != itemsize(to) || to == DType::Index || to == DType::Bool) return {};
  auto bits = raw_bits(x);
  if (!bits) return {};
  if (!is_float(to)) return const_int(to, static_cast<int64_t>(*bits), x.shape());
  const auto low = static_cast<uint32_t>(*bits);
  const double value = is_narrow(to)      ? narrow_to_f32(to, low)
                       : to == DType::F32 ? std::bit_cast<float>(low)
                                          : std::bit_cast<double>(*bits);
  return std::isnan(value) ? UOp() : const_float(to, value, x.shape());
}

}  // namespace

UOp fold_constants(Op op, DType dtype, std::span<const UOp> src) {
  if (src.empty() || !is_elementwise(op)) return {};
  for (const UOp& s : src) {
    if (!is_const(s)) return {};
  }
  DimSpan shape = src[0].shape();
  if (op == Op::Where) return src[const_bits(*src[0]) ? 1 : 2];
  if (op == Op::Cast) return fold_cast(src[0], dtype);
  if (op == Op::Bitcast) return fold_bitcast(src[0], dtype);

  DType type = src[0].dtype();
  if (is_float(type)) {
    double b = src.size() > 1 ? const_as_double(src[1]) : 0;
    return fold_float(op, dtype, const_as_double(src[0]), b, shape);
  }
  const int64_t b = src.size() > 1 ? const_bits(*src[1]) : 0;
  return fold_integer(op, dtype, type, const_bits(*src[0]), b, shape);
}

UOp identity_of(ReduceOp op, DType dtype) {
  using Start = ReduceInfo::Start;
  const Start start = info(op).start;
  if (start == Start::Zero || start == Start::One) return const_int(dtype, start == Start::One);
  const bool lowest = start == Start::Lowest;
  double infinity = std::numeric_limits<double>::infinity();
  if (is_float8(dtype) && dtype != DType::F8E5M2)  // has none
    infinity = float8_to_f32(float8_format(dtype), float8_format(dtype).largest);
  if (is_float(dtype)) return const_float(dtype, lowest ? -infinity : infinity);
  if (!is_signed_int(dtype)) return const_int(dtype, lowest ? 0 : -1);
  int spare = 64 - 8 * int(itemsize(dtype));
  return const_int(dtype, (lowest ? INT64_MIN : INT64_MAX) >> spare);
}

UOp fold_reduction(ReduceOp op, const UOp& constant, int64_t count) {
  const DType dtype = constant.dtype();
  UOp one = reshaped_const(constant, {});
  const ReduceInfo& facts = info(op);
  if (facts.chooses || dtype == DType::Bool) return one;
  if (is_float(dtype)) {
    const double all = facts.repeated(const_as_double(one), count);
    return fold_cast(const_float(DType::F64, all), dtype);
  }
  const IntegerKind kind = integer_kind(dtype);
  auto bits = [](const UOp& x) { return static_cast<uint64_t>(const_bits(*x)); };
  uint64_t twice = bits(one), all = bits(identity_of(op, dtype));  // 1, 2, 4 .. times
  for (int64_t n = count; n > 0; n >>= 1, twice = facts.integers(kind, twice, twice)) {
    if (n & 1) all = facts.integers(kind, all, twice);
  }
  return const_int(dtype, static_cast<int64_t>(all));
}

}  // namespace tinyshard
