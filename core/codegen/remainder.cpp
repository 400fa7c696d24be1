// The rest of a division of floats, exact as C's fmod. With r = |a| and y = |b|, multiples q * t of
// y are taken off r, where t is y times a power of two and q < 2^24 (2^53 for f64) is a whole
// number; both products and differences are exact in a fused multiply-add. fmod(1e9f, 0.3f):
//
//   r = 1e9        t = 2^8 * 0.3    q = 13020833   r = 1.35...
//   r = 1.35...    t = 0.3          q = 4          r = 0.15...   < y: done
//
// Quotients below 2^24 take one round, the largest of f32 twelve, those of f64 forty. Rounding may
// make q one too large; r is below 0 then and t is put back. Divisors without a leading one
// (subnormals) are first taken times 2^24, which is a normal number.
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include "core/codegen/arith.h"

namespace tinyshard::codegen {
namespace {

using llvm::BasicBlock;
using llvm::ConstantFP;
using llvm::ConstantInt;
using llvm::Type;
using llvm::Value;

}  // namespace

Value* Math::fmod(Value* a, Value* b) { return b_.CreateCall(fmod_function(a->getType()), {a, b}); }

// T fmod(T a, T b) for a scalar or vector of f32 or f64.
llvm::Function* Math::fmod_function(Type* type) {
  const bool single = type->getScalarType()->isFloatTy();
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  const unsigned lanes = vector ? vector->getNumElements() : 1;
  const std::string name =
      std::string("fmod_") + (single ? "f32x" : "f64x") + std::to_string(lanes);
  if (llvm::Function* existing = module_.getFunction(name)) return existing;
  auto* function = llvm::Function::Create(llvm::FunctionType::get(type, {type, type}, false),
                                          llvm::Function::InternalLinkage, name, module_);
  if (!dialect_) function->addFnAttr(llvm::Attribute::NoInline);
  function->addFnAttr(llvm::Attribute::NoUnwind);

  const unsigned stored = single ? 23 : 52, digits = stored + 1;  // of a mantissa
  Type* whole = b_.getIntNTy(single ? 32 : 64);
  if (vector) whole = llvm::FixedVectorType::get(whole, lanes);
  auto real = [&](double v) { return ConstantFP::get(type, v); };
  auto integer = [&](uint64_t v) { return ConstantInt::get(whole, v); };
  auto any = [&](Value* v) { return vector ? b_.CreateOrReduce(v) : v; };
  auto size = [&](Value* v) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v); };
  const uint64_t exponent_bits = uint64_t{single ? 0xffu : 0x7ffu} << stored;

  llvm::IRBuilder<>::InsertPointGuard back(b_);
  auto& context = b_.getContext();
  auto* entry = BasicBlock::Create(context, "entry", function);
  auto* loop = BasicBlock::Create(context, "loop", function);
  auto* done = BasicBlock::Create(context, "done", function);

  b_.SetInsertPoint(entry);
  Value *a = function->getArg(0), *b = function->getArg(1);
  Value* infinity = ConstantFP::getInfinity(type);
  Value* defined =
      b_.CreateAnd(b_.CreateFCmpOLT(size(a), infinity), b_.CreateFCmpOGT(size(b), real(0)));
  Value* start = b_.CreateSelect(defined, size(a), real(0));
  Value* y = b_.CreateSelect(defined, size(b), real(1));
  Value* subnormal = b_.CreateFCmpOLT(y, real(single ? 0x1p-126 : 0x1p-1022));
  Value* normal = b_.CreateSelect(subnormal, b_.CreateFMul(y, real(single ? 0x1p24 : 0x1p53)), y);
  Value* normal_bits = b_.CreateBitCast(normal, whole);
  Value* last = b_.CreateAdd(b_.CreateAnd(normal_bits, integer(exponent_bits)),
                             integer(uint64_t{digits - 1} << stored));
  b_.CreateCondBr(any(b_.CreateFCmpOGE(start, y)), loop, done);

  b_.SetInsertPoint(loop);
  auto* r = b_.CreatePHI(type, 2);
  // The largest t whose quotient has few enough digits.
  Value* exponent = b_.CreateAnd(b_.CreateBitCast(r, whole), integer(exponent_bits));
  Value* power =
      b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, b_.CreateSub(exponent, last), integer(0));
  Value* scaled = b_.CreateBitCast(b_.CreateAdd(normal_bits, power), type);
  Value* t = b_.CreateSelect(b_.CreateFCmpOGE(r, normal), scaled, y);
  Value* q = b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, b_.CreateFDiv(r, t));
  Value* rest = fma(b_.CreateFNeg(q), t, r);
  rest = b_.CreateSelect(b_.CreateFCmpOLT(rest, real(0)), b_.CreateFAdd(rest, t), rest);
  // Lanes that are done may have an infinite y.
  Value* next = b_.CreateSelect(b_.CreateFCmpOGE(r, y), rest, r);
  r->addIncoming(start, entry);
  r->addIncoming(next, loop);
  b_.CreateCondBr(any(b_.CreateFCmpOGE(next, y)), loop, done);

  b_.SetInsertPoint(done);
  auto* result = b_.CreatePHI(type, 2);
  result->addIncoming(start, entry);
  result->addIncoming(next, loop);
  Value* with_sign = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, result, a);
  b_.CreateRet(b_.CreateSelect(defined, with_sign, ConstantFP::getNaN(type)));
  return function;
}

}  // namespace tinyshard::codegen
