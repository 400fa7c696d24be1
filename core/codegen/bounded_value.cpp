// Each op on a value and the bound of its error: 3, at most 0.1 off, times an exact 2 is 6, at most
// 0.2 and one ulp of 6 off.
#include "core/codegen/bounded_value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/dtype/half.h"

namespace tinyshard::bounded {

bool has_sign(DType dtype) { return is_signed_int(dtype) || dtype == DType::Index; }

namespace {

constexpr double kSeriesUlps = 4;

uint64_t width_of(DType dtype) { return dtype == DType::Index ? 64 : 8 * itemsize(dtype); }

double ulp(DType dtype, double value) {
  struct Format {
    int digits, lowest;
  };
  const Format format = dtype == DType::F64   ? Format{53, -1074}
                        : dtype == DType::F16 ? Format{11, -24}
                        : dtype == DType::F32 ? Format{24, -149}
                                              : Format{8, -133};
  if (!std::isfinite(value)) return 0;
  int exponent = format.lowest;
  if (value != 0) std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - format.digits, format.lowest));
}

int64_t wrapped(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::Bool:
      return bits != 0;
    case DType::I8:
      return static_cast<int8_t>(bits);
    case DType::U8:
      return static_cast<uint8_t>(bits);
    case DType::I16:
      return static_cast<int16_t>(bits);
    case DType::U16:
      return static_cast<uint16_t>(bits);
    case DType::I32:
      return static_cast<int32_t>(bits);
    case DType::U32:
      return static_cast<uint32_t>(bits);
    default:
      return static_cast<int64_t>(bits);
  }
}

int64_t lowest_of(DType dtype) {
  const uint64_t sign = uint64_t{1} << (width_of(dtype) - 1);
  return has_sign(dtype) ? -static_cast<int64_t>(sign - 1) - 1 : 0;
}

int64_t highest_of(DType dtype) {
  if (dtype == DType::Bool) return 1;
  const uint64_t sign = uint64_t{1} << (width_of(dtype) - 1);
  return static_cast<int64_t>(has_sign(dtype) ? sign - 1 : sign - 1 + sign);
}

int64_t saturated(DType to, double v) {
  if (std::isnan(v)) return 0;
  v = std::trunc(v);
  if (to == DType::U64) {
    return v <= 0 ? 0 : v >= 0x1p64 ? -1 : static_cast<int64_t>(static_cast<uint64_t>(v));
  }
  const int64_t low = lowest_of(to), high = highest_of(to);
  if (v <= static_cast<double>(low)) return low;
  return v >= static_cast<double>(high) ? high : static_cast<int64_t>(v);
}

template <class T>
T get(const void* memory, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(memory) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

uint64_t bits_of(const Value& v, DType dtype) {
  switch (dtype) {
    case DType::F64:
      return std::bit_cast<uint64_t>(v.real);
    case DType::F32:
      return std::bit_cast<uint32_t>(static_cast<float>(v.real));
    default:
      return is_narrow(dtype) ? f64_to_narrow(dtype, v.real) : static_cast<uint64_t>(v.whole);
  }
}

}  // namespace

double largest(DType dtype) {
  if (is_float8(dtype)) {
    const Float8Format format = float8_format(dtype);
    return float8_to_f32(format, format.largest);
  }
  return dtype == DType::F64   ? std::numeric_limits<double>::max()
         : dtype == DType::F16 ? 65504.0
                               : static_cast<double>(std::numeric_limits<float>::max());
}

bool known(const Value& v) { return !v.unsure && std::isfinite(v.error); }

Value real_value(DType dtype, double exact, double error, double ulps) {
  const DType computes_in = dtype == DType::F64 ? DType::F64 : DType::F32;
  const double value = rounded_to(dtype, rounded_to(computes_in, exact));
  if (ulps > 0) error += ulps * ulp(computes_in, value);
  if (error > 0) error += ulp(dtype, value);
  const bool open = error > 0 && !std::isfinite(value);
  return {value, open || std::isnan(error) ? kInfinity : error, 0, false};
}

Value element(const void* memory, DType dtype, int64_t i) {
  const auto real = [](double x) { return Value{x, 0, 0, false}; };
  const auto whole = [](int64_t x) { return Value{0, 0, x, false}; };
  switch (dtype) {
    case DType::F64:
      return real(get<double>(memory, i));
    case DType::F32:
      return real(get<float>(memory, i));
    case DType::Bool:
      return whole(get<uint8_t>(memory, i) != 0);
    default:
      break;
  }
  uint64_t bits = 0;
  const size_t size = itemsize(dtype);
  std::memcpy(&bits, static_cast<const char*>(memory) + i * static_cast<int64_t>(size), size);
  if (is_narrow(dtype)) return real(narrow_to_f32(dtype, static_cast<uint32_t>(bits)));
  return whole(wrapped(dtype, bits));
}

Value bit_cast(const Value& v, DType from, DType to) {
  const uint64_t bits = bits_of(v, from);
  Value out = element(&bits, to, 0);
  if (v.unsure || v.error > 0 || (is_float(from) && std::isnan(v.real))) {
    out.unsure = true;  // the payload of NaN is nobody's business
    out.error = kInfinity;
  }
  return out;
}

Value cast(const Value& v, DType from, DType to) {
  if (is_float(to)) {
    // Once, without f32 or f64 between.
    const double exact = is_float(from)       ? rounded_to(to, v.real)
                         : from == DType::U64 ? rounded_integer(to, static_cast<uint64_t>(v.whole))
                                              : rounded_integer(to, v.whole);
    return real_value(to, exact, is_float(from) ? v.error : v.unsure ? kInfinity : 0);
  }
  if (!is_float(from)) return {0, 0, wrapped(to, static_cast<uint64_t>(v.whole)), v.unsure};
  if (to == DType::Bool) {
    return {0, 0, v.real != 0, v.error > 0 && !(std::abs(v.real) > v.error)};
  }
  const int64_t low = saturated(to, v.real - v.error), high = saturated(to, v.real + v.error);
  return {0, 0, saturated(to, v.real), v.error > 0 && (low != high || !known(v))};
}

namespace {

// The larger one of 0 and -0 is either of them, as devices have it. This bound is kept by zeros alone,
// and leaves open what depends on the sign.
double between_zeros(double a, double b) {
  const bool differ = a == 0 && b == 0 && std::signbit(a) != std::signbit(b);
  return differ ? std::numeric_limits<double>::denorm_min() : 0;
}

// Returns how far a result may be off because its operands are, without its own rounding; `f` is
// the op on reals and `v` its result. Infinity for an op that is not named here.
double spread(Op op, OnReals f, const Value& a, const Value& b, double v) {
  const double x = a.real, y = b.real, ea = a.error, eb = b.error;
  if (op == Op::Max) return std::max({ea, eb, between_zeros(x, y)});
  if (ea + eb == 0) return 0;
  // The largest change within the bound, of functions that are monotonous there.
  const auto within = [&](bool defined) {
    if (!defined || !std::isfinite(ea)) return kInfinity;
    return std::max(std::abs(f(x + ea, y) - v), std::abs(f(x - ea, y) - v));
  };
  switch (op) {
    case Op::Neg:
    case Op::Sin:
      return ea;
    case Op::Exp2:
      return within(true);
    case Op::Log2:
      return within(x > ea);
    case Op::Sqrt:
      return within(x >= ea);
    case Op::Recip:
      return within(std::abs(x) > ea);
    case Op::Trunc:
      return f(x - ea, y) == v && f(x + ea, y) == v ? 0 : ea + 1;
    case Op::Add:
    case Op::Sub:
      return ea + eb;
    case Op::Mul:
      return std::abs(x) * eb + std::abs(y) * ea + ea * eb;
    case Op::Div:
      return std::abs(y) > eb ? (ea + std::abs(x / y) * eb) / (std::abs(y) - eb) : kInfinity;
    case Op::Mod: {
      // The sawtooth jumps where the quotient passes a whole number.
      const auto quotient = [&](double p, double q) { return std::trunc(p / q); };
      const double near = std::abs(y) > eb ? (std::abs(x) + ea) / (std::abs(y) - eb) : kInfinity;
      const bool steady = near < 0x1p20 && quotient(x - ea, y - eb) == quotient(x + ea, y + eb) &&
                          quotient(x - ea, y + eb) == quotient(x + ea, y - eb);
      return steady ? ea + near * eb : kInfinity;
    }
    default:
      return kInfinity;
  }
}

}  // namespace

Value on_reals(Op op, DType dtype, const Value& a, const Value& b, double division_ulps) {
  if (op == Op::Or) {  // of bits; one of the two is 0 where it is used, and bounds stay
    const uint64_t bits = bits_of(a, dtype) | bits_of(b, dtype);
    Value result = element(&bits, dtype, 0);
    result.error = std::max(a.error, b.error);
    return result;
  }
  const ElementFacts& facts = info(op).element;
  if (!facts.reals)
    throw InternalError("TS_CHECK=values knows no floats of op " + std::string(info(op).name));
  const double value = facts.reals(a.real, b.real);
  if (info(op).type_rule == TypeRule::Bool) {
    const double error = a.error + b.error;
    return {0, 0, value != 0, error > 0 && !(std::abs(a.real - b.real) > error)};
  }
  const double ulps = facts.accuracy == Accuracy::Series     ? kSeriesUlps
                      : facts.accuracy == Accuracy::Division ? division_ulps
                                                             : 0;
  return real_value(dtype, value, spread(op, facts.reals, a, b, value), ulps);
}

Value on_integers(Op op, DType from, DType dtype, const Value& a, const Value& b) {
  const OnIntegers compute = info(op).element.integers;
  if (!compute)
    throw InternalError("TS_CHECK=values knows no integers of op " + std::string(info(op).name));
  const uint64_t bits =
      compute(integer_kind(from), static_cast<uint64_t>(a.whole), static_cast<uint64_t>(b.whole));
  return {0, 0, wrapped(dtype, bits), a.unsure || b.unsure};
}

Total::Total(ReduceOp op, DType dtype, bool contracts)
    : op_(op), dtype_(dtype), contracts_(contracts) {
  using Start = ReduceInfo::Start;
  const Start start = info(op).start;
  if (start == Start::One) real_ = 1, value_.whole = 1;
  if (start == Start::Lowest) extremum_ = -kInfinity;
  if (start == Start::Highest) extremum_ = kInfinity;
  if (start == Start::Lowest && !is_float(dtype)) value_.whole = lowest_of(dtype);
  if (start == Start::Highest && !is_float(dtype)) value_.whole = highest_of(dtype);
}

void Total::add(const Value& v) {
  ++count_;
  if (!is_float(dtype_)) return add_whole(v);
  nan_ = nan_ || std::isnan(v.real);
  switch (op_) {
    case ReduceOp::Sum:
      real_ += v.real;
      sizes_ += std::abs(v.real);
      error_ += v.error;
      break;
    case ReduceOp::Prod:
      real_ *= v.real;
      if (v.error > 0) error_ += v.error / std::abs(v.real);  // relative
      break;
    default:
      check_internal(info(op_).chooses, "how errors of this reduction grow");
      error_ = std::max({error_, v.error, between_zeros(extremum_, v.real)});
      extremum_ = info(op_).reals(extremum_, v.real);
  }
}

Value Total::value() const {
  if (!is_float(dtype_)) return value_;
  if (nan_) return {NAN, error_ > 0 ? kInfinity : 0, 0, false};
  // Each addition rounds once, whatever their order, and each product, if it does.
  const double rounding = (dtype_ == DType::F64 ? 0x1p-53 : 0x1p-24) * 1.01;
  const double roundings = double(count_ - (count_ > 0)) + (contracts_ ? 1 : 0);
  const auto total = static_cast<double>(real_);
  double error = error_;
  switch (op_) {
    case ReduceOp::Sum:
      error += roundings * rounding * static_cast<double>(sizes_);
      if (sizes_ > largest(dtype_ == DType::F64 ? dtype_ : DType::F32)) error = kInfinity;
      return real_value(dtype_, total, error);
    case ReduceOp::Prod: {
      // Partial products may have left the range of the type on the way.
      const bool in_range = std::abs(total) > 1e-30 && std::abs(total) < 1e30;
      error = in_range || count_ < 2 ? (error + roundings * rounding) * std::abs(total) : kInfinity;
      return real_value(dtype_, total, error);
    }
    default:
      return real_value(dtype_, extremum_, error);
  }
}

void Total::add_whole(const Value& v) {
  value_.unsure = value_.unsure || v.unsure;
  value_.whole =
      wrapped(dtype_, info(op_).integers(integer_kind(dtype_), static_cast<uint64_t>(value_.whole),
                                         static_cast<uint64_t>(v.whole)));
}

}  // namespace tinyshard::bounded
