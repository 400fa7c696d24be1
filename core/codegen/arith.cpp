// Each op has one meaning on scalars and vectors, CPU and GPU, so that a node has the same bits
// wherever it is emitted:
//   1. Operands come as registers hold them: floats of 8 and 16 bits as f32, Bool as i1.
//   2. `compute` does the op in that type; what has no instruction is a polynomial (math.cpp), a
//      division that cannot trap, or a selection that gives NaN where kernel.h says so.
//   3. `emit` rounds a result of 8 or 16 bits once, unless the op only chose among its operands.
//
//   add bf16 (1.0, 2^-9)   is   fadd float, rounded to the 8 bits of bf16: 1.0
//   max bf16 (1.0, 2^-9)   is   a selection and no rounding
//
// Nothing here may be contracted or reassociated; where a sum may take a product unrounded, the
// caller sets the flag (KernelNode::contracts).
#include "core/codegen/arith.h"

#include <bit>
#include <limits>
#include <numeric>

#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Intrinsics.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/rewrite/fold.h"
#include "core/uop/args.h"

namespace tinyshard::codegen {
namespace {

using llvm::ConstantFP;
using llvm::ConstantInt;
using llvm::FixedVectorType;
using llvm::Type;
using llvm::Value;

int lanes_of(const Value* x) {
  auto* vector = llvm::dyn_cast<FixedVectorType>(x->getType());
  return vector ? static_cast<int>(vector->getNumElements()) : 1;
}

// The type of x with another element.
Type* like(const Value* x, Type* element) {
  int lanes = lanes_of(x);
  return lanes == 1 && !x->getType()->isVectorTy() ? element : FixedVectorType::get(element, lanes);
}

bool is_signed(DType dtype) { return is_signed_int(dtype) || dtype == DType::Index; }

}  // namespace

Arith::Arith(llvm::IRBuilder<>& builder, llvm::Module& module, const Target& target)
    : b_(builder), module_(module) {
  auto has = [&](const char* feature) {
    return target.features.find(feature) != std::string::npos;
  };
  has_avx512_ = target.triple.starts_with("x86_64") && has("+avx512f") && has("+avx512dq") &&
                has("+avx512vl");
  has_plain_avx_ = target.triple.starts_with("x86_64") && has("+avx") && !has("+avx512f");
  has_masks_of_64_ = has_avx512_ && has("+avx512bw");
  dialect_ = GpuDialect::of(target);
  has_f16_ = target.triple.starts_with("aarch64") || has("+f16c") || dialect_;
}

// --- representation ------------------------------------------------------------------------------

Type* Arith::type(DType dtype, int lanes) const {
  Type* element = nullptr;
  switch (dtype) {
    case DType::Bool:
      element = b_.getInt1Ty();
      break;
    case DType::I8:
    case DType::U8:
      element = b_.getInt8Ty();
      break;
    case DType::I16:
    case DType::U16:
      element = b_.getInt16Ty();
      break;
    case DType::I32:
    case DType::U32:
      element = b_.getInt32Ty();
      break;
    case DType::I64:
    case DType::U64:
    case DType::Index:
      element = b_.getInt64Ty();
      break;
    case DType::F8E4M3FN:
    case DType::F8E5M2:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2FNUZ:
    case DType::F16:
    case DType::BF16:
    case DType::F32:
      element = b_.getFloatTy();
      break;
    case DType::F64:
      element = b_.getDoubleTy();
      break;
  }
  return lanes == 1 ? element : FixedVectorType::get(element, lanes);
}

Type* Arith::memory_type(DType dtype, int lanes) const {
  Type* element = type(dtype);
  if (dtype == DType::Bool || is_float8(dtype)) element = b_.getInt8Ty();
  if (dtype == DType::BF16) element = b_.getInt16Ty();
  if (dtype == DType::F16) element = has_f16_ ? b_.getHalfTy() : b_.getInt16Ty();
  return lanes == 1 ? element : FixedVectorType::get(element, lanes);
}

// An x86 register of 16-bit elements is eight of them in each 16 bytes. One instruction puts the
// lower four each behind 16 zeros, as f32 has the bits of bf16, and one the upper four. In the order
// of memory that takes two instructions each: elements are spread over the register, then shifted.
Value* Arith::from_memory(Value* x, DType dtype, bool by_quads) {
  if (const int lanes = lanes_of(x); by_quads && lanes > 8) {
    llvm::SmallVector<int, 64> order(size_t(lanes), 0);
    for (int i = 0; i < lanes; ++i) order[size_t(lane_of(i, lanes, true))] = i;
    if (dtype != DType::BF16) return b_.CreateShuffleVector(from_memory(x, dtype), order);
    auto behind_zeros = [&](const int* first, const int* last) {
      llvm::SmallVector<int, 64> pairs;
      for (; first != last; ++first) pairs.append({0, lanes + *first});
      Value* zeros = llvm::Constant::getNullValue(x->getType());
      return b_.CreateBitCast(b_.CreateShuffleVector(zeros, x, pairs),
                              FixedVectorType::get(b_.getFloatTy(), lanes / 2));
    };
    const int *first = order.begin(), *middle = first + lanes / 2;
    Value *lower = behind_zeros(first, middle), *upper = behind_zeros(middle, order.end());
    llvm::SmallVector<int, 64> all(size_t(lanes), 0);
    std::iota(all.begin(), all.end(), 0);
    return b_.CreateShuffleVector(lower, upper, all);
  }
  switch (dtype) {
    case DType::Bool:
      return b_.CreateICmpNE(x, llvm::Constant::getNullValue(x->getType()));
    case DType::BF16:
      return b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(x, like(x, b_.getInt32Ty())), 16),
                              like(x, b_.getFloatTy()));
    case DType::F16:
      return has_f16_ ? b_.CreateFPExt(x, like(x, b_.getFloatTy())) : from_f16_bits(x);
    default:
      return is_float8(dtype) ? from_float8(x, dtype) : x;
  }
}

Value* Arith::from_bits(Value* bits, DType dtype) {
  Type* element = memory_type(dtype);
  Value* low = b_.CreateTrunc(bits, b_.getIntNTy(element->getScalarSizeInBits()));
  return from_memory(b_.CreateBitCast(low, element), dtype);
}

Value* Arith::moved_bits(Value* x, DType dtype, int depth) {
  Type* i16 = like(x, b_.getInt16Ty());
  if (auto* number = llvm::dyn_cast<ConstantFP>(x); number && !number->isNaN()) {
    const double value = number->getValueAPF().convertToDouble();
    return ConstantInt::get(i16, dtype == DType::F16 ? f64_to_f16(value) : f64_to_bf16(value));
  }
  if (auto* either = llvm::dyn_cast<llvm::SelectInst>(x); either && depth > 0) {
    Value *yes = moved_bits(either->getTrueValue(), dtype, depth - 1), *no = nullptr;
    if (yes) no = moved_bits(either->getFalseValue(), dtype, depth - 1);
    return no ? b_.CreateSelect(either->getCondition(), yes, no) : nullptr;
  }
  if (auto* half = llvm::dyn_cast<llvm::FPExtInst>(x); half && dtype == DType::F16) {
    const bool fits = half->getSrcTy()->getScalarType()->isHalfTy();
    return fits ? b_.CreateBitCast(half->getOperand(0), i16) : nullptr;
  }
  auto* cast = llvm::dyn_cast<llvm::BitCastInst>(x);
  auto* shift = cast ? llvm::dyn_cast<llvm::BinaryOperator>(cast->getOperand(0)) : nullptr;
  if (dtype != DType::BF16 || !shift || shift->getOpcode() != llvm::Instruction::Shl)
    return nullptr;
  auto* wide = llvm::dyn_cast<llvm::ZExtInst>(shift->getOperand(0));
  return wide && wide->getSrcTy() == i16 ? wide->getOperand(0) : nullptr;
}

Value* Arith::to_memory(Value* x, DType dtype, bool rounded) {
  if (dialect_ && is_half(dtype)) {
    if (Value* bits = moved_bits(x, dtype))
      return b_.CreateBitCast(bits, like(x, memory_type(dtype)));
  }
  switch (dtype) {
    case DType::Bool:
      return b_.CreateZExt(x, like(x, b_.getInt8Ty()));
    case DType::BF16: {
      Value* bits = b_.CreateBitCast(rounded ? x : round_bf16(x), like(x, b_.getInt32Ty()));
      return b_.CreateTrunc(b_.CreateLShr(bits, 16), like(x, b_.getInt16Ty()));
    }
    case DType::F16:
      return has_f16_ ? b_.CreateFPTrunc(x, like(x, b_.getHalfTy())) : f16_bits(x);
    default:
      return is_float8(dtype) ? float8_bits(x, dtype) : x;
  }
}

Value* Arith::constant(DType dtype, int64_t bits, int lanes) {
  Type* t = type(dtype, lanes);
  if (!is_float(dtype)) return ConstantInt::get(t, static_cast<uint64_t>(bits));
  const double value = rounded_to(dtype, std::bit_cast<double>(bits));
  return splat(ConstantFP::get(type(dtype), value), lanes);
}

Value* Arith::splat(Value* scalar, int lanes) {
  return lanes == 1 || scalar->getType()->isVectorTy() ? scalar
                                                       : b_.CreateVectorSplat(lanes, scalar);
}

Value* Arith::ramp(Type* element, int lanes, int64_t step) {
  std::vector<llvm::Constant*> values;
  for (int i = 0; i < lanes; ++i)
    values.push_back(ConstantInt::get(element, static_cast<uint64_t>(step * i)));
  return llvm::ConstantVector::get(values);
}

Value* Arith::index_width(Value* index, unsigned bits) {
  return b_.CreateSExtOrTrunc(index, like(index, b_.getIntNTy(bits)));
}

// --- 16-bit floats -------------------------------------------------------------------------------

Value* Arith::round_bf16(Value* x, bool same_nan) {
  // The upper half of a pair is where a bf16 has its bits as an f32.
  if (dialect_ && !same_nan) {
    Value* zero = ConstantFP::get(x->getType(), 0.0);
    return b_.CreateBitCast(dialect_->pair(b_, DType::BF16, zero, x), x->getType());
  }
  Type* i32 = like(x, b_.getInt32Ty());
  Value* bits = b_.CreateBitCast(x, i32);
  Value* odd = b_.CreateAnd(b_.CreateLShr(bits, 16), ConstantInt::get(i32, 1));
  Value* rounded = b_.CreateAdd(bits, b_.CreateAdd(odd, ConstantInt::get(i32, 0x7fff)));
  Value* quiet = b_.CreateOr(bits, ConstantInt::get(i32, 0x400000));
  Value* chosen = b_.CreateSelect(b_.CreateFCmpUNO(x, x), quiet, rounded);
  return b_.CreateBitCast(b_.CreateAnd(chosen, ConstantInt::get(i32, 0xffff0000u)), x->getType());
}

Value* Arith::round_f16(Value* x) {
  if (has_f16_) return b_.CreateFPExt(b_.CreateFPTrunc(x, like(x, b_.getHalfTy())), x->getType());
  return from_f16_bits(f16_bits(x));
}

Value* Arith::rounded(Value* x, DType dtype) {
  if (is_float8(dtype)) return from_float8(float8_bits(x, dtype), dtype);
  return dtype == DType::F16 ? round_f16(x) : dtype == DType::BF16 ? round_bf16(x) : x;
}

// The same steps as core/dtype/half.h.
Value* Arith::f16_bits(Value* x) {
  Type *i32 = like(x, b_.getInt32Ty()), *f32 = x->getType();
  auto c = [&](uint32_t v) { return ConstantInt::get(i32, v); };
  Value* bits = b_.CreateBitCast(x, i32);
  Value* sign = b_.CreateAnd(b_.CreateLShr(bits, 16), c(0x8000));
  Value* rest = b_.CreateAnd(bits, c(0x7fffffff));
  Value* odd = b_.CreateAnd(b_.CreateLShr(rest, 13), c(1));
  Value* normal = b_.CreateLShr(
      b_.CreateSub(b_.CreateAdd(rest, b_.CreateAdd(odd, c(0xfff))), c(0x38000000)), 13);
  Value* small = b_.CreateFAdd(b_.CreateBitCast(rest, f32), ConstantFP::get(f32, 0.5));
  Value* subnormal = b_.CreateSub(b_.CreateBitCast(small, i32), c(0x3f000000));
  Value* result = b_.CreateSelect(b_.CreateICmpULT(rest, c(0x38800000)), subnormal, normal);
  result = b_.CreateSelect(b_.CreateICmpUGE(rest, c(0x47800000)), c(0x7c00), result);
  result = b_.CreateSelect(b_.CreateICmpUGT(rest, c(0x7f800000)), c(0x7e00), result);
  return b_.CreateTrunc(b_.CreateOr(result, sign), like(x, b_.getInt16Ty()));
}

Value* Arith::from_f16_bits(Value* x) {
  Type *i32 = like(x, b_.getInt32Ty()), *f32 = like(x, b_.getFloatTy());
  auto c = [&](uint32_t v) { return ConstantInt::get(i32, v); };
  Value* bits = b_.CreateZExt(x, i32);
  Value* sign = b_.CreateShl(b_.CreateAnd(bits, c(0x8000)), 16);
  Value* rest = b_.CreateShl(b_.CreateAnd(bits, c(0x7fff)), 13);
  Value* exponent = b_.CreateAnd(rest, c(0x0f800000));
  Value* normal = b_.CreateAdd(rest, c(112u << 23));
  Value* special = b_.CreateOr(rest, c(0x7f800000));
  // Subnormals: 2^-14 * (1 + mantissa) - 2^-14.
  Value* subnormal = b_.CreateFSub(b_.CreateBitCast(b_.CreateAdd(rest, c(113u << 23)), f32),
                                   ConstantFP::get(f32, 0x1p-14));
  Value* result =
      b_.CreateSelect(b_.CreateICmpEQ(exponent, c(0)), b_.CreateBitCast(subnormal, i32), normal);
  result = b_.CreateSelect(b_.CreateICmpEQ(exponent, c(0x0f800000)), special, result);
  return b_.CreateBitCast(b_.CreateOr(result, sign), f32);
}

// The same steps as f64_to_odd_f32 in core/dtype/half.h.
Value* Arith::odd_f32(Value* x) {
  Type *f32 = like(x, b_.getFloatTy()), *i32 = like(x, b_.getInt32Ty());
  Value* nearest = b_.CreateFPTrunc(x, f32);
  Value* back = b_.CreateFPExt(nearest, x->getType());
  auto size = [&](Value* v) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v); };
  Value* above = b_.CreateZExt(b_.CreateFCmpOGT(size(back), size(x)), i32);
  Value* inexact = b_.CreateZExt(b_.CreateFCmpONE(back, x), i32);
  Value* bits = b_.CreateSub(b_.CreateBitCast(nearest, i32), above);
  return b_.CreateBitCast(b_.CreateOr(bits, inexact), f32);
}

// The same steps as integer_to_odd_f64 in core/dtype/half.h, on the integer: its conversion to f64
// is then exact.
Value* Arith::odd_integer(Value* x, DType dtype) {
  Type* t = x->getType();
  if (t->getScalarSizeInBits() <= 32) return x;
  auto c = [&](int64_t v) { return ConstantInt::getSigned(t, v); };
  Value* low = b_.CreateICmpNE(b_.CreateAnd(x, c(0xfff)), c(0));
  Value* odd =
      b_.CreateOr(b_.CreateAnd(x, c(~int64_t{0xfff})), b_.CreateSelect(low, c(0x800), c(0)));
  // Where 53 bits hold x, which then lies in [-2^53, 2^53), it stays as it is.
  Value* moved = is_signed(dtype) ? b_.CreateAdd(x, c(int64_t{1} << 53)) : x;
  Value* limit = c(is_signed(dtype) ? int64_t{1} << 54 : int64_t{1} << 53);
  return b_.CreateSelect(b_.CreateICmpULT(moved, limit), x, odd);
}

// --- casts ---------------------------------------------------------------------------------------

Value* Arith::cast(Value* x, DType from, DType to) {
  if (from == to) return x;
  bool from_float = is_float(from), to_float = is_float(to);
  if (to == DType::Bool) {
    Value* zero = llvm::Constant::getNullValue(x->getType());
    return from_float ? b_.CreateFCmpUNE(x, zero) : b_.CreateICmpNE(x, zero);
  }
  Type* t = like(x, type(to));
  if (from_float && to_float) {
    if (to == DType::F64) return b_.CreateFPExt(x, t);
    if (from == DType::F64) x = is_narrow(to) ? odd_f32(x) : b_.CreateFPTrunc(x, t);
    return rounded(x, to);
  }
  if (from_float) {
    auto id = is_signed(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat;
    return b_.CreateIntrinsic(id, {t, x->getType()}, {x});
  }
  if (to_float) {
    // Integers beyond 24 bits are beyond all narrow floats but bf16.
    const bool odd = to == DType::BF16 && itemsize(from) > 2;
    if (odd) x = odd_integer(x, from), t = like(x, b_.getDoubleTy());
    Value* value = is_signed(from) ? b_.CreateSIToFP(x, t) : b_.CreateUIToFP(x, t);
    return rounded(odd ? odd_f32(value) : value, to);
  }
  return b_.CreateIntCast(x, t, is_signed(from));
}

Value* Arith::bitcast(Value* x, DType from, DType to) {
  if (itemsize(from) != itemsize(to))
    throw InternalError("bitcast between types of different size");
  // Through the integer that lies in memory; GPUs have a NaN of their own when they round.
  const bool own_nan = dialect_ != nullptr;
  Value* memory = own_nan && is_half(from) ? moved_bits(x, from) : nullptr;
  if (!memory && own_nan && from == DType::BF16) x = round_bf16(x, true);
  if (!memory) memory = own_nan && from == DType::F16 ? f16_bits(x) : to_memory(x, from, own_nan);
  Type* target = like(x, memory_type(to));
  return from_memory(b_.CreateBitCast(memory, target), to);
}

// --- arithmetic ----------------------------------------------------------------------------------

Value* Arith::extremum(bool largest, DType dtype, Value* a, Value* b) {
  if (dtype == DType::Bool) return largest ? b_.CreateOr(a, b) : b_.CreateAnd(a, b);
  if (!is_float(dtype)) {
    auto id = is_signed(dtype) ? (largest ? llvm::Intrinsic::smax : llvm::Intrinsic::smin)
                               : (largest ? llvm::Intrinsic::umax : llvm::Intrinsic::umin);
    return b_.CreateBinaryIntrinsic(id, a, b);
  }
  if (dialect_ && dtype != DType::F64) {
    auto id = largest ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum;
    return b_.CreateBinaryIntrinsic(id, a, b);
  }
  // The comparison keeps b when either is NaN; what is left is a NaN in a.
  Value* chosen = b_.CreateSelect(largest ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b), a, b);
  return b_.CreateSelect(b_.CreateFCmpUNO(a, a), a, chosen);
}

// Divides floats. Where 16 bits are kept, GPUs divide to two ulps of f32, without a rare branch.
Value* Arith::quotient(DType dtype, Value* a, Value* b) {
  if (!dialect_) {
    // LLVM 19 takes lanes in which both operands are known to be 0 for 0 in the quotient, too, and
    // drops the mask that would keep their NaN out of a sum. A fence hides what it knows.
    if (b->getType()->isVectorTy() && !llvm::isa<llvm::Constant>(b))
      b = b_.CreateIntrinsic(llvm::Intrinsic::arithmetic_fence, {b->getType()}, {b});
    return b_.CreateFDiv(a, b);
  }
  if (!is_narrow(dtype)) return b_.CreateFDiv(a, b);
  return dialect_->quotient(b_, a, b);
}

Value* Arith::shift(Op op, DType dtype, Value* x, Value* by) {
  Type* t = x->getType();
  Value* width = ConstantInt::get(t, t->getScalarSizeInBits());
  Value* shifted = op == Op::Shl      ? b_.CreateShl(x, by)
                   : is_signed(dtype) ? b_.CreateAShr(x, by)
                                      : b_.CreateLShr(x, by);
  return b_.CreateSelect(b_.CreateICmpULT(by, width), shifted, llvm::Constant::getNullValue(t));
}

Value* Arith::divide(Op op, DType dtype, Value* x, Value* by) {
  Type* t = x->getType();
  unsigned bits = t->getScalarSizeInBits();
  Value *zero = ConstantInt::get(t, 0), *one = ConstantInt::get(t, 1),
        *minus_one = ConstantInt::getSigned(t, -1);
  bool sign = is_signed(dtype);
  if (dtype == DType::Bool)
    return op == Op::IDiv ? b_.CreateAnd(x, by) : llvm::Constant::getNullValue(t);
  Value* quotient;
  if (llvm::isa<llvm::Constant>(by)) {
    auto* c = llvm::cast<llvm::Constant>(by);
    if (t->isVectorTy()) c = c->getSplatValue();
    auto* divisor = llvm::dyn_cast_or_null<ConstantInt>(c);
    if (divisor && !divisor->isZero() && !(sign && divisor->isMinusOne())) {
      if (op == Op::Mod) return sign ? b_.CreateSRem(x, by) : b_.CreateURem(x, by);
      return sign ? b_.CreateSDiv(x, by) : b_.CreateUDiv(x, by);
    }
  }
  Value* is_zero = b_.CreateICmpEQ(by, zero);
  if (t->isVectorTy() && bits <= 32) {
    // No vector unit divides integers; doubles hold 32-bit quotients exactly.
    Type *f64 = like(x, b_.getDoubleTy()), *i64 = like(x, b_.getInt64Ty());
    Value* safe = b_.CreateSelect(is_zero, one, by);
    auto real = [&](Value* v) { return sign ? b_.CreateSIToFP(v, f64) : b_.CreateUIToFP(v, f64); };
    quotient = b_.CreateTrunc(b_.CreateFPToSI(b_.CreateFDiv(real(x), real(safe)), i64), t);
  } else if (sign) {
    // The most negative number over -1 traps: negate instead.
    Value* is_minus_one = b_.CreateICmpEQ(by, minus_one);
    Value* safe = b_.CreateSelect(b_.CreateOr(is_zero, is_minus_one), one, by);
    quotient = b_.CreateSelect(is_minus_one, b_.CreateNeg(x), b_.CreateSDiv(x, safe));
  } else {
    quotient = b_.CreateUDiv(x, b_.CreateSelect(is_zero, one, by));
  }
  Value* result = op == Op::IDiv ? quotient : b_.CreateSub(x, b_.CreateMul(quotient, by));
  return b_.CreateSelect(is_zero, zero, result);
}

Value* Arith::index_division(Op op, Value* x, Value* by, int64_t low) {
  Type* t = x->getType();
  auto* constant = llvm::dyn_cast<llvm::Constant>(by);
  if (constant && t->isVectorTy()) constant = constant->getSplatValue();
  auto* divisor = llvm::dyn_cast_or_null<ConstantInt>(constant);
  if (low >= 0 && divisor && divisor->getSExtValue() > 0) {
    return op == Op::IDiv ? b_.CreateUDiv(x, by) : b_.CreateURem(x, by);
  }
  Value *zero = ConstantInt::get(t, 0), *one = ConstantInt::get(t, 1);
  Value* is_zero = b_.CreateICmpEQ(by, zero);
  Value* safe = b_.CreateSelect(is_zero, one, by);
  Value *quotient = b_.CreateSDiv(x, safe), *rest = b_.CreateSub(x, b_.CreateMul(quotient, safe));
  Value* below =
      b_.CreateAnd(b_.CreateICmpNE(rest, zero), b_.CreateICmpSLT(b_.CreateXor(rest, safe), zero));
  Value* result = op == Op::IDiv ? b_.CreateSub(quotient, b_.CreateZExt(below, t))
                                 : b_.CreateAdd(rest, b_.CreateSelect(below, safe, zero));
  return b_.CreateSelect(is_zero, zero, result);
}

Value* Arith::emit(Op op, DType dtype, DType source, llvm::ArrayRef<Value*> x) {
  Value* result = compute(op, dtype, source, x);
  return info(op).element.accuracy == Accuracy::Chosen ? result : rounded(result, dtype);
}

// LLVM (19) wants to know each lane of a mask that ands and ors of 64 lanes make of constants, and
// looks again on each way there: the count of a concatenation of four parts did not end within minutes.
// A constant that has gone through an empty assembly line is one that it knows nothing of, in a
// register.
Value* Arith::kept_as_mask(Value* x) {
  constexpr int kLanes = 64;
  auto* constant = llvm::dyn_cast<llvm::Constant>(x);
  if (!has_masks_of_64_ || !constant || lanes_of(x) != kLanes || constant->getSplatValue())
    return x;
  uint64_t mask = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const llvm::Constant* lane = constant->getAggregateElement(i);
    if (lane && lane->isOneValue()) mask |= uint64_t{1} << i;
  }
  Type* bits = b_.getInt64Ty();
  auto* line =
      llvm::InlineAsm::get(llvm::FunctionType::get(bits, {bits}, false), "", "=r,0", false);
  return b_.CreateBitCast(b_.CreateCall(line, {b_.getInt64(mask)}), x->getType());
}

Value* Arith::compute(Op op, DType dtype, DType source, llvm::ArrayRef<Value*> operands) {
  bool real = is_float(source), boolean = source == DType::Bool, sign = is_signed(source);
  llvm::SmallVector<Value*, 4> x(operands);
  if (boolean && x.size() == 2) x = {kept_as_mask(x[0]), kept_as_mask(x[1])};
  Type* t = x[0]->getType();
  Math math(b_, module_, has_avx512_, dialect_);
  switch (op) {
    case Op::Neg:
      return real ? b_.CreateFNeg(x[0]) : boolean ? x[0] : b_.CreateNeg(x[0]);
    case Op::Exp2:
      return math.exp2(x[0]);
    case Op::Log2:
      return math.log2(x[0]);
    case Op::Sin:
      return math.sin(x[0]);
    case Op::Sqrt:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x[0]);
    case Op::Recip:
      return quotient(dtype, ConstantFP::get(t, 1.0), x[0]);
    case Op::Trunc:
      return real ? b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, x[0]) : x[0];
    case Op::Not:
      return b_.CreateNot(x[0]);
    case Op::Cast:
      return cast(x[0], source, dtype);
    case Op::Bitcast:
      return bitcast(x[0], source, dtype);
    case Op::Add:
      return real      ? b_.CreateFAdd(x[0], x[1])
             : boolean ? b_.CreateOr(x[0], x[1])
                       : b_.CreateAdd(x[0], x[1]);
    case Op::Sub:
      return real      ? b_.CreateFSub(x[0], x[1])
             : boolean ? b_.CreateXor(x[0], x[1])
                       : b_.CreateSub(x[0], x[1]);
    case Op::Mul:
      return real      ? b_.CreateFMul(x[0], x[1])
             : boolean ? b_.CreateAnd(x[0], x[1])
                       : b_.CreateMul(x[0], x[1]);
    case Op::Div:
      return real ? quotient(dtype, x[0], x[1]) : divide(Op::IDiv, source, x[0], x[1]);
    case Op::Mod:
      return real ? math.fmod(x[0], x[1]) : divide(op, source, x[0], x[1]);
    case Op::IDiv:
      return divide(op, source, x[0], x[1]);
    case Op::Max:
      return extremum(true, source, x[0], x[1]);
    case Op::And:
      return b_.CreateAnd(x[0], x[1]);
    case Op::Or: {
      if (!real) return b_.CreateOr(x[0], x[1]);
      Type* bits = like(x[0], b_.getIntNTy(t->getScalarSizeInBits()));
      return b_.CreateBitCast(
          b_.CreateOr(b_.CreateBitCast(x[0], bits), b_.CreateBitCast(x[1], bits)), t);
    }
    case Op::Xor:
      return b_.CreateXor(x[0], x[1]);
    case Op::Shl:
    case Op::Shr:
      return shift(op, source, x[0], x[1]);
    case Op::CmpLt:
      return real   ? b_.CreateFCmpOLT(x[0], x[1])
             : sign ? b_.CreateICmpSLT(x[0], x[1])
                    : b_.CreateICmpULT(x[0], x[1]);
    case Op::CmpEq:
      return real ? b_.CreateFCmpOEQ(x[0], x[1]) : b_.CreateICmpEQ(x[0], x[1]);
    case Op::CmpNe:
      return real ? b_.CreateFCmpUNE(x[0], x[1]) : b_.CreateICmpNE(x[0], x[1]);
    case Op::Threefry:
      return math.threefry(x[0], x[1]);
    case Op::Where:
      return b_.CreateSelect(x[0], x[1], x[2]);
    default:
      throw InternalError("no lowering for op " + std::string(info(op).name));
  }
}

// --- reductions ----------------------------------------------------------------------------------

Value* Arith::identity(ReduceOp op, DType dtype, int lanes) {
  return constant(dtype, const_bits(*identity_of(op, dtype)), lanes);
}

Value* Arith::combine(ReduceOp op, DType dtype, Value* accumulator, Value* x) {
  switch (op) {
    case ReduceOp::Sum:
      return compute(Op::Add, dtype, dtype, {accumulator, x});
    case ReduceOp::Prod:
      return compute(Op::Mul, dtype, dtype, {accumulator, x});
    case ReduceOp::Max:
    case ReduceOp::Min:
      return extremum(op == ReduceOp::Max, dtype, x, accumulator);
  }
  throw InternalError("no lowering for reduction " + std::string(name(op)));
}

// The lanes that a step of a horizontal adds up, of a value that takes `width` lanes from `begin` on:
// the first half of the neighbours that are left, and the second one.
static void add_halves(int begin, int width, bool by_quads, llvm::SmallVectorImpl<int>& low,
                       llvm::SmallVectorImpl<int>& high) {
  const int pieces = by_quads && width > 8 ? 2 : 1, piece = width / pieces;
  for (int first = begin; first < begin + width; first += piece) {
    for (int i = 0; i < piece / 2; ++i)
      low.push_back(first + i), high.push_back(first + piece / 2 + i);
  }
}

Value* Arith::horizontal(ReduceOp op, DType dtype, Value* x, bool by_quads) {
  bool ordered = is_float(dtype) && info(op).chooses;
  Value* nan = ordered ? b_.CreateOrReduce(b_.CreateFCmpUNO(x, x)) : nullptr;
  for (int lanes = lanes_of(x); lanes > 1; lanes /= 2) {
    llvm::SmallVector<int, 64> low, high;
    add_halves(0, lanes, by_quads, low, high);
    Value *a = b_.CreateShuffleVector(x, low), *b = b_.CreateShuffleVector(x, high);
    if (ordered) {  // NaN is put back at the end
      x = b_.CreateSelect(op == ReduceOp::Max ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b), a,
                          b);
    } else {
      x = combine(op, dtype, a, b);
    }
  }
  Value* result = b_.CreateExtractElement(x, uint64_t{0});
  return ordered ? b_.CreateSelect(nan, ConstantFP::getNaN(result->getType()), result) : result;
}

// Reduces four vectors of four lanes with a pair of shuffles for each addition of whole registers:
//   a0 a1 a2 a3   b0 b1 b2 b3   c0 c1 c2 c3   d0 d1 d2 d3
//   a0+a2 a1+a3 b0+b2 b1+b3     c0+c2 c1+c3 d0+d2 d1+d3
//   a b c d
llvm::SmallVector<Value*, 8> Arith::horizontals(ReduceOp op, DType dtype,
                                                llvm::ArrayRef<Value*> values, int register_lanes,
                                                bool by_quads) {
  llvm::SmallVector<Value*, 8> x(values.begin(), values.end()), results;
  if (x.size() < 2 || (is_float(dtype) && info(op).chooses)) {
    for (Value* v : x) results.push_back(horizontal(op, dtype, v, by_quads));
    return results;
  }
  int width = lanes_of(x[0]);  // of what is left of each value; values lie side by side in x
  // Combines the halves of each value in `lanes` lanes: those of `a`, then those of `b`. The two may
  // be the same object, as equal constants are.
  auto halves = [&](Value* a, Value* b, int lanes) {
    llvm::SmallVector<int, 64> low, high;
    for (int i = 0; i < lanes; i += width) add_halves(i, width, by_quads, low, high);
    return combine(op, dtype, b_.CreateShuffleVector(a, b, low),
                   b_.CreateShuffleVector(a, b, high));
  };
  for (; width > 1; width /= 2) {
    const int lanes = lanes_of(x[0]);
    if (width > register_lanes || x.size() == 1) {
      for (Value*& v : x) v = halves(v, v, lanes);
      continue;
    }
    // A vector without a partner gets one whose lanes nobody reads.
    if (x.size() % 2 != 0) x.push_back(llvm::PoisonValue::get(x[0]->getType()));
    for (size_t i = 0; i < x.size() / 2; ++i) x[i] = halves(x[2 * i], x[2 * i + 1], 2 * lanes);
    x.resize(x.size() / 2);
  }
  const auto lanes = static_cast<size_t>(lanes_of(x[0]));
  for (size_t i = 0; i < values.size(); ++i)
    results.push_back(b_.CreateExtractElement(x[i / lanes], i % lanes));
  return results;
}

}  // namespace tinyshard::codegen
