// Floats of 8 bits in registers, with the same steps as core/dtype/float8.h: integer operations
// that every processor and GPU has, on all lanes at once, with selections for what is special.
#include "core/dtype/float8.h"

#include "core/codegen/arith.h"

namespace tinyshard::codegen {
namespace {

using llvm::ConstantInt;
using llvm::Type;
using llvm::Value;

Type* in_lanes_of(const Value* x, Type* element) { return x->getType()->getWithNewType(element); }

}  // namespace

Value* Arith::from_float8(Value* x, DType dtype) {
  const Float8Format f = float8_format(dtype);
  Type *i32 = in_lanes_of(x, b_.getInt32Ty()), *f32 = in_lanes_of(x, b_.getFloatTy());
  auto c = [&](uint32_t v) { return ConstantInt::get(i32, v); };
  auto as_f32 = [&](Value* bits) { return b_.CreateBitCast(bits, f32); };
  Value* code = b_.CreateZExt(x, i32);
  Value* size = b_.CreateAnd(code, c(0x7f));
  Value* sign = b_.CreateShl(b_.CreateAnd(code, c(0x80)), 24);
  Value* fraction = b_.CreateShl(size, f.dropped());
  Value* normal = b_.CreateAdd(fraction, c(f.rebias() << 23));
  Value* small = b_.CreateFMul(b_.CreateUIToFP(size, f32), as_f32(c(f.least_subnormal())));
  Value* bits = b_.CreateSelect(b_.CreateICmpULT(size, c(1u << f.mantissa)),
                                b_.CreateBitCast(small, i32), normal);
  if (f.fnuz) {
    bits = b_.CreateOr(bits, sign);
    return as_f32(b_.CreateSelect(b_.CreateICmpEQ(code, c(0x80)), c(0x7fc00000), bits));
  }
  Value* special = b_.CreateOr(b_.CreateAnd(fraction, c(0x7fffff)), c(0x7f800000));
  bits = b_.CreateSelect(b_.CreateICmpUGT(size, c(f.largest)), special, bits);
  return as_f32(b_.CreateOr(bits, sign));
}

Value* Arith::float8_bits(Value* x, DType dtype) {
  const Float8Format f = float8_format(dtype);
  Type *i32 = in_lanes_of(x, b_.getInt32Ty()), *f32 = x->getType();
  auto c = [&](uint32_t v) { return ConstantInt::get(i32, v); };
  auto as_f32 = [&](Value* bits) { return b_.CreateBitCast(bits, f32); };
  Value* bits = b_.CreateBitCast(x, i32);
  Value* rest = b_.CreateAnd(bits, c(0x7fffffff));
  Value* sign = b_.CreateAnd(b_.CreateLShr(bits, 24), c(0x80));
  Value* kept = b_.CreateLShr(rest, f.dropped());

  Value* sum = b_.CreateFAdd(as_f32(rest), as_f32(c(f.rounder())));
  Value* small = b_.CreateSub(b_.CreateBitCast(sum, i32), c(f.rounder()));
  Value* half = b_.CreateAdd(b_.CreateAnd(kept, c(1)), c((1u << (f.dropped() - 1)) - 1));
  Value* normal = b_.CreateSub(b_.CreateLShr(b_.CreateAdd(rest, half), f.dropped()),
                               c(f.rebias() << f.mantissa));
  normal = b_.CreateSelect(b_.CreateICmpUGT(normal, c(f.largest)), c(f.overflow), normal);
  Value* code = b_.CreateSelect(b_.CreateICmpULT(rest, c(f.least_normal())), small, normal);

  Value* nan = c(f.overflow);
  if (dtype == DType::F8E5M2) {
    nan = b_.CreateOr(b_.CreateAnd(kept, c(3)), c(0x7c));
    nan = b_.CreateSelect(b_.CreateICmpEQ(nan, c(0x7c)), c(0x7e), nan);
  }
  code = b_.CreateSelect(b_.CreateICmpUGT(rest, c(0x7f800000)), nan, code);
  Value* with_sign = b_.CreateOr(code, sign);
  if (f.fnuz) {
    Value* has_no_sign = b_.CreateOr(b_.CreateICmpEQ(code, c(0)), b_.CreateICmpEQ(code, c(0x80)));
    with_sign = b_.CreateSelect(has_no_sign, code, with_sign);
  }
  return b_.CreateTrunc(with_sign, in_lanes_of(x, b_.getInt8Ty()));
}

}  // namespace tinyshard::codegen
