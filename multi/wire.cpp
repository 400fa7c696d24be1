// Bits of a positive float, read as an integer, are ordered as the
// floats are; those of a negative one the other way round, so they
// are inverted but for the sign. NaN becomes the integer that wins:
//
//   f32 -2, -1, 0, 1 as integers    0xbfffffff  0xc07fffff  0  0x3f800000    (two's complement)
#include "multi/wire.h"

#include <cstdint>
#include <limits>

namespace tinyshard {
namespace {

bool travels_as_key(DType dtype, ReduceOp op) {
  return is_float(dtype) && (op == ReduceOp::Max || op == ReduceOp::Min);
}

// The masks of a float as an integer of its size: every bit but the sign, and the bits of infinity.
struct Bits {
  DType integer;
  int64_t magnitude, infinity;
};
Bits bits_of(DType dtype) {
  if (dtype == DType::F64)
    return {DType::I64, std::numeric_limits<int64_t>::max(), 0x7ff0000000000000};
  return {DType::I32, std::numeric_limits<int32_t>::max(), 0x7f800000};
}
DType at_least_f32(DType dtype) { return dtype == DType::F64 ? dtype : DType::F32; }

UOp like(const UOp& x, int64_t value) { return const_int(x.dtype(), value, x.shape()); }

UOp bitcast(const UOp& x, DType dtype) { return UOp::make(Op::Bitcast, dtype, {x}); }

// Floats are sign and magnitude, integers two's complement: they are in one order once the
// magnitude of what is negative is inverted. Inverting twice gives back what was there.
UOp reordered(const UOp& bits, int64_t magnitude) {
  UOp negative = binary(Op::CmpLt, bits, like(bits, 0));
  return where(negative, binary(Op::Xor, bits, like(bits, magnitude)), bits);
}

}  // namespace

DType wire_type(DType type, ReduceOp op) {
  if (type == DType::I16) return DType::I32;
  if (type == DType::U16) return DType::U32;
  return travels_as_key(type, op) ? bits_of(type).integer : type;
}

UOp to_wire(const UOp& x, ReduceOp op) {
  if (!travels_as_key(x.dtype(), op)) return cast(x, wire_type(x.dtype(), op));
  const Bits known = bits_of(x.dtype());
  UOp bits = bitcast(cast(x, at_least_f32(x.dtype())), known.integer);
  UOp size = binary(Op::And, bits, like(bits, known.magnitude));
  UOp is_nan = binary(Op::CmpLt, like(bits, known.infinity), size);
  // The integer that wins every comparison; it reads as NaN again.
  int64_t beyond = op == ReduceOp::Max ? known.magnitude : -known.magnitude - 1;
  return where(is_nan, like(bits, beyond), reordered(bits, known.magnitude));
}

UOp from_wire(const UOp& reduced, DType dtype, ReduceOp op) {
  if (!travels_as_key(dtype, op)) return cast(reduced, dtype);
  UOp bits = reordered(reduced, bits_of(dtype).magnitude);
  return cast(bitcast(bits, at_least_f32(dtype)), dtype);
}

}  // namespace tinyshard
