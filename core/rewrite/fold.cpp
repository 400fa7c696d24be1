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

template <class F>
std::optional<F> float_arithmetic(Op op, F a, F b) {
  switch (op) {
    case Op::Neg:
      return -a;
    case Op::Exp2:
      return static_cast<F>(std::exp2(static_cast<double>(a)));
    case Op::Log2:
      return static_cast<F>(std::log2(static_cast<double>(a)));
    case Op::Sin:
      return static_cast<F>(std::sin(static_cast<double>(a)));
    case Op::Sqrt:
      return std::sqrt(a);
    case Op::Recip:
      return F(1) / a;
    case Op::Trunc:
      return std::trunc(a);
    case Op::Add:
      return a + b;
    case Op::Sub:
      return a - b;
    case Op::Mul:
      return a * b;
    case Op::Div:
      return a / b;
    case Op::Mod:
      return std::fmod(a, b);
    case Op::Max:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<F>::quiet_NaN();
      if (a == b && std::signbit(a) != std::signbit(b))
        return std::nullopt;  // +0 or -0: not defined
      return a < b ? b : a;
    default:
      return std::nullopt;
  }
}

UOp fold_float(Op op, DType dtype, double a, double b, DimSpan shape) {
  switch (op) {
    case Op::CmpLt:
      return const_int(DType::Bool, a < b, shape);
    case Op::CmpEq:
      return const_int(DType::Bool, a == b, shape);
    case Op::CmpNe:
      return const_int(DType::Bool, a != b, shape);
    default:
      break;
  }
  if (dtype == DType::F64) {
    auto value = float_arithmetic<double>(op, a, b);
    return value ? float_result(dtype, *value, shape) : UOp();
  }
  auto value = float_arithmetic<float>(op, static_cast<float>(a), static_cast<float>(b));
  return value ? float_result(dtype, *value, shape) : UOp();
}

// --- integers ------------------------------------------------------------------------------------

// The 64 bits of a narrow unsigned value are zero-extended, so unsigned 64-bit arithmetic is exact.
std::optional<int64_t> signed_arithmetic(Op op, int64_t a, int64_t b, int bits) {
  auto u = [](int64_t x) { return static_cast<uint64_t>(x); };
  auto s = [](uint64_t x) { return static_cast<int64_t>(x); };
  switch (op) {
    case Op::Neg:
      return s(0 - u(a));
    case Op::Not:
      return ~a;
    case Op::Add:
      return s(u(a) + u(b));
    case Op::Sub:
      return s(u(a) - u(b));
    case Op::Mul:
      return s(u(a) * u(b));
    case Op::IDiv:
      return b == 0 ? 0 : b == -1 ? s(0 - u(a)) : a / b;
    case Op::Mod:
      return b == 0 || b == -1 ? 0 : a % b;
    case Op::Max:
      return std::max(a, b);
    case Op::And:
      return a & b;
    case Op::Or:
      return a | b;
    case Op::Xor:
      return a ^ b;
    case Op::Shl:
      return b < 0 || b >= bits ? 0 : s(u(a) << b);
    case Op::Shr:
      return b < 0 || b >= bits ? 0 : a >> b;
    case Op::CmpLt:
      return a < b;
    case Op::CmpEq:
      return a == b;
    case Op::CmpNe:
      return a != b;
    default:
      return std::nullopt;
  }
}

uint64_t threefry2x32(uint64_t counter, uint64_t key) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t k[3] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), 0};
  k[2] = k[0] ^ k[1] ^ 0x1BD11BDAu;
  uint32_t x0 = static_cast<uint32_t>(counter) + k[0];
  uint32_t x1 = static_cast<uint32_t>(counter >> 32) + k[1];
  for (uint32_t i = 0; i < 5; ++i) {
    for (int rotation : kRotations[i % 2]) {
      x0 += x1;
      x1 = std::rotl(x1, rotation) ^ x0;
    }
    x0 += k[(i + 1) % 3];
    x1 += k[(i + 2) % 3] + i + 1;
  }
  return uint64_t{x1} << 32 | x0;
}

std::optional<int64_t> unsigned_arithmetic(Op op, uint64_t a, uint64_t b, int bits) {
  switch (op) {
    case Op::IDiv:
      return static_cast<int64_t>(b == 0 ? 0 : a / b);
    case Op::Mod:
      return static_cast<int64_t>(b == 0 ? 0 : a % b);
    case Op::Max:
      return static_cast<int64_t>(std::max(a, b));
    case Op::Shl:
      return b >= static_cast<uint64_t>(bits) ? 0 : static_cast<int64_t>(a << b);
    case Op::Shr:
      return b >= static_cast<uint64_t>(bits) ? 0 : static_cast<int64_t>(a >> b);
    case Op::CmpLt:
      return a < b;
    case Op::Threefry:
      return bits == 64 ? std::optional(static_cast<int64_t>(threefry2x32(a, b))) : std::nullopt;
    default:
      return signed_arithmetic(op, static_cast<int64_t>(a), static_cast<int64_t>(b), bits);
  }
}

std::optional<int64_t> bool_arithmetic(Op op, bool a, bool b) {
  switch (op) {
    case Op::Not:
      return !a;
    case Op::Add:
    case Op::Max:
    case Op::Or:
      return a || b;
    case Op::Mul:
    case Op::And:
      return a && b;
    case Op::Xor:
    case Op::CmpNe:
      return a != b;
    case Op::CmpEq:
      return a == b;
    case Op::CmpLt:
      return !a && b;
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> index_arithmetic(Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case Op::Neg:
      return __builtin_sub_overflow(int64_t{0}, a, &r) ? std::nullopt : std::optional(r);
    case Op::Add:
      return __builtin_add_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case Op::Sub:
      return __builtin_sub_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case Op::Mul:
      return __builtin_mul_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case Op::IDiv:
    case Op::Mod: {
      if (b == 0 || b == -1) return std::nullopt;
      int64_t down = a / b - (a % b != 0 && (a < 0) != (b < 0));
      return op == Op::IDiv ? down : a - down * b;
    }
    default:
      return signed_arithmetic(op, a, b, 64);
  }
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
  float single = static_cast<float>(value);
  switch (x.dtype()) {
    case DType::F16:
      return f32_to_f16(single);
    case DType::BF16:
      return f32_to_bf16(single);
    case DType::F32:
      return std::bit_cast<uint32_t>(single);
    default:
      return std::bit_cast<uint64_t>(value);
  }
}

UOp fold_bitcast(const UOp& x, DType to) {
  if (itemsize(x.dtype()) != itemsize(to) || to == DType::Index || to == DType::Bool) return {};
  auto bits = raw_bits(x);
  if (!bits) return {};
  double value = 0;
  switch (to) {
    case DType::F16:
      value = f16_to_f32(static_cast<uint16_t>(*bits));
      break;
    case DType::BF16:
      value = bf16_to_f32(static_cast<uint16_t>(*bits));
      break;
    case DType::F32:
      value = std::bit_cast<float>(static_cast<uint32_t>(*bits));
      break;
    case DType::F64:
      value = std::bit_cast<double>(*bits);
      break;
    default:
      return const_int(to, static_cast<int64_t>(*bits), x.shape());
  }
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
  int64_t a = const_bits(*src[0]), b = src.size() > 1 ? const_bits(*src[1]) : 0;
  int bits = static_cast<int>(itemsize(type) * 8);
  std::optional<int64_t> value;
  if (type == DType::Bool) {
    value = bool_arithmetic(op, a != 0, b != 0);
  } else if (type == DType::Index) {
    value = index_arithmetic(op, a, b);
  } else if (is_unsigned_int(type)) {
    value = unsigned_arithmetic(op, static_cast<uint64_t>(a), static_cast<uint64_t>(b), bits);
  } else {
    value = signed_arithmetic(op, a, b, bits);
  }
  return value ? const_int(dtype, *value, shape) : UOp();
}

UOp identity_of(ReduceOp op, DType dtype) {
  if (op == ReduceOp::Sum || op == ReduceOp::Prod) return const_int(dtype, op == ReduceOp::Prod);
  bool lowest = op == ReduceOp::Max;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (is_float(dtype)) return const_float(dtype, lowest ? -infinity : infinity);
  if (!is_signed_int(dtype)) return const_int(dtype, lowest ? 0 : -1);
  int spare = 64 - 8 * int(itemsize(dtype));
  return const_int(dtype, (lowest ? INT64_MIN : INT64_MAX) >> spare);
}

UOp fold_reduction(ReduceOp op, const UOp& constant, int64_t count) {
  const DType dtype = constant.dtype();
  UOp one = reshaped_const(constant, {});
  if (op == ReduceOp::Max || op == ReduceOp::Min || dtype == DType::Bool) return one;
  if (is_float(dtype)) {
    double c = const_as_double(one), n = static_cast<double>(count);
    double all = op == ReduceOp::Sum ? c * n : std::pow(std::fabs(c), n);
    if (op == ReduceOp::Prod && std::signbit(c) && count % 2 == 1) all = -all;
    return fold_cast(const_float(DType::F64, all), dtype);
  }
  uint64_t c = static_cast<uint64_t>(const_bits(*one)), all = 1;
  if (op == ReduceOp::Sum) {
    all = c * static_cast<uint64_t>(count);
  } else {
    for (int64_t n = count; n > 0; n >>= 1, c *= c) {
      if (n & 1) all *= c;
    }
  }
  return const_int(dtype, static_cast<int64_t>(all));
}

}  // namespace tinyshard
