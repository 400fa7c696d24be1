// A key is made of the bits of a value: a sign bit is turned over, a negative float entirely. A falling
// order takes the complement, so that 3 2 1 are the keys ~3 ~2 ~1, which rise.
#include "core/uop/sort_keys.h"

#include <limits>

namespace tinyshard {
namespace {

DType unsigned_of(DType dtype) {
  switch (itemsize(dtype)) {
    case 1:
      return DType::U8;
    case 2:
      return DType::U16;
    case 4:
      return DType::U32;
    default:
      return DType::U64;
  }
}

UOp bits_of(const UOp& x, DType type) {
  return x.dtype() == type ? x : UOp::make(Op::Bitcast, type, {x});
}

UOp rising_keys(const UOp& x) {
  const DType type = unsigned_of(x.dtype());
  if (x.dtype() == DType::Bool) return cast(x, type);
  if (is_unsigned_int(x.dtype())) return x;
  const uint64_t top = uint64_t{1} << (8 * itemsize(type) - 1), all = top - 1 + top;
  const auto constant = [&](uint64_t bits) { return const_int(type, int64_t(bits), x.shape()); };
  UOp keys = binary(Op::Xor, bits_of(x, type), constant(top));
  if (!is_float(x.dtype())) return keys;
  const UOp zero = const_like(x, 0);
  keys = where(binary(Op::CmpLt, x, zero), binary(Op::Xor, bits_of(x, type), constant(all)), keys);
  keys = where(binary(Op::CmpEq, x, zero), constant(top), keys);
  return where(binary(Op::CmpNe, x, x), constant(all), keys);
}

}  // namespace

UOp sort_keys(const UOp& x, Sorting sorting) {
  const UOp keys = rising_keys(x);
  return sorting == Sorting::Falling ? unary(Op::Not, keys) : keys;
}

UOp last_in_order(DType type, Sorting sorting) {
  const bool rising = sorting != Sorting::Falling;
  if (is_float(type)) {
    using Limits = std::numeric_limits<double>;
    return const_float(type, rising ? Limits::quiet_NaN() : -Limits::infinity());
  }
  if (type == DType::Bool) return const_int(type, rising);
  const int bits = 8 * int(itemsize(type));
  const uint64_t top = uint64_t{1} << (bits - 1);
  if (is_signed_int(type)) return const_int(type, int64_t(rising ? top - 1 : ~(top - 1)));
  return const_int(type, rising ? -1 : 0);
}

}  // namespace tinyshard
