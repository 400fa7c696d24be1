// exp2, log2 and sin by argument reduction and minimax polynomials (Remez, relative error),
// evaluated with fused multiply-adds and without contraction elsewhere, so that their errors are
// what they were designed to be. Relative errors of the polynomials: exp2 2^-28.9 and 2^-58, log2
// 2^-27.9 (f32; the f64 one follows fdlibm), sin 2^-34 and 2^-58.
#include <limits>

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include "core/codegen/arith.h"

namespace tinyshard::codegen {
namespace {

using llvm::ConstantFP;
using llvm::ConstantInt;
using llvm::FixedVectorType;
using llvm::Type;
using llvm::Value;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// 2^r = 1 + r * q(r) for |r| <= 1/2.
constexpr double kExp2Single[] = {0x1.62e43p-1,  0x1.ebfbdcp-3,  0x1.c6aee8p-5,
                                  0x1.3b2d4cp-7, 0x1.5f3e54p-10, 0x1.41fbb6p-13};
constexpr double kExp2Double[] = {
    0x1.62e42fefa39efp-1,  0x1.ebfbdff82c5a4p-3,  0x1.c6b08d7049fe8p-5,  0x1.3b2ab6fba011ap-7,
    0x1.5d87fe78cd6c2p-10, 0x1.4309130ed8b91p-13, 0x1.ffcbfba980e22p-17, 0x1.62bfc79d6b0d8p-20,
    0x1.b5267ce4c5650p-24, 0x1.e61b4f8080bcap-28, 0x1.e79baaf9755afp-32};
// log2(1 + f) = f * (kLog2Single0 + f * p(f)) for 1 + f between sqrt(1/2) and sqrt(2).
constexpr double kLog2Single0 = 0x1.715476p+0;
constexpr double kLog2Single[] = {-0x1.715470p-1, 0x1.ec7096p-2,  -0x1.715a76p-2,
                                  0x1.277e38p-2,  -0x1.eabc88p-3, 0x1.a305a0p-3,
                                  -0x1.874bdap-3, 0x1.7d497ap-3,  -0x1.c25b36p-4};
// fdlibm's atanh series of log(1 + f), and 1 / ln 2 in two parts.
constexpr double kLogEven[] = {3.999999999940941908e-01, 2.222219843214978396e-01,
                               1.531383769920937332e-01};
constexpr double kLogOdd[] = {6.666666666666735130e-01, 2.857142874366239149e-01,
                              1.818357216161805012e-01, 1.479819860511658591e-01};
constexpr double kInverseLn2High = 1.44269504072144627571e+00,
                 kInverseLn2Low = 1.67517131648865118353e-10;
// sin r = r + r z p(z), cos r = q(z), z = r * r, |r| <= pi / 4.
constexpr double kSinSingle[] = {-0x1.55555548e35a0p-3, 0x1.11110718729c1p-7,
                                 -0x1.a00ec71afe125p-13, 0x1.6cb0a88e255b3p-19};
constexpr double kCosSingle[] = {0x1.ffffffff84b98p-1, -0x1.ffffffb6647ddp-2, 0x1.555538a56f2b5p-5,
                                 -0x1.6c06eb638e384p-10, 0x1.98e7dad59c0cfp-16};
constexpr double kSinDouble[] = {-0x1.5555555555543p-3,  0x1.111111110f30cp-7,
                                 -0x1.a01a019b92fecp-13, 0x1.71de351f3e8cap-19,
                                 -0x1.ae5e2b618c993p-26, 0x1.5d84088d4e3f4p-33};
constexpr double kCosDouble[] = {1.0,
                                 -0.5,
                                 0x1.5555555555533p-5,
                                 -0x1.6c16c16c1362dp-10,
                                 0x1.a01a019ad76aep-16,
                                 -0x1.27e4f6fe221bcp-22,
                                 0x1.1ee954794d4c1p-29,
                                 -0x1.8f6ad58f10974p-37};
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPi[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
// Above this, n * kHalfPi loses what the reduced argument needs.
constexpr double kLargeAngle = 0x1p30;
// 2 / pi in binary after one word of zeros, so that small exponents need no case of their own.
constexpr uint64_t kTwoOverPiBits[] = {0,
                                       0xa2f9836e4e441529,
                                       0xfc2757d1f534ddc0,
                                       0xdb6295993c439041,
                                       0xfe5163abdebbc561,
                                       0xb7246e3a424dd2e0,
                                       0x06492eea09d1921c,
                                       0xfe1deb1cb129a73e,
                                       0xe88235f52ebb4484,
                                       0xe99c7026b45f7e41,
                                       0x3991d639835339f4,
                                       0x9c845f8bbdf9283b,
                                       0x1ff897ffde05980f,
                                       0xef2f118b5a0a6d1f,
                                       0x6d367ecf27cb09b7,
                                       0x4f463f669e5fea2d,
                                       0x7527bac7ebe5f17b,
                                       0x3d0739f78a5292ea,
                                       0x6bfb5fb11f8d5d08,
                                       0x56033046fc7b6bab,
                                       0xf0cfbc209af4361d,
                                       0xa9e391615ee61b08,
                                       0x6599855f14a06840};

Type* like(const Value* x, Type* element) {
  auto* vector = llvm::dyn_cast<FixedVectorType>(x->getType());
  return vector ? FixedVectorType::get(element, vector->getNumElements()) : element;
}

Value* real(const Value* x, double value) { return ConstantFP::get(x->getType(), value); }
Value* whole(const Value* x, int64_t value) { return ConstantInt::getSigned(x->getType(), value); }
bool is_single(const Value* x) { return x->getType()->getScalarType()->isFloatTy(); }

// Explicit fused multiply-adds only: contraction off while in scope.
struct Exact {
  explicit Exact(llvm::IRBuilder<>& b) : guard(b) { b.clearFastMathFlags(); }
  llvm::IRBuilder<>::FastMathFlagGuard guard;
};

}  // namespace

Value* Math::fma(Value* a, Value* b, Value* c) {
  return b_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
}

Value* Math::polynomial(Value* x, llvm::ArrayRef<double> coefficients) {
  Value* sum = real(x, coefficients.back());
  for (size_t i = coefficients.size() - 1; i-- > 0;) sum = fma(sum, x, real(x, coefficients[i]));
  return sum;
}

// Applies `part_of` to pieces of at most `lanes` lanes and joins the results.
Value* Math::in_parts(Value* x, unsigned lanes, llvm::function_ref<Value*(Value*)> part_of) {
  auto* vector = llvm::dyn_cast<FixedVectorType>(x->getType());
  if (!vector || vector->getNumElements() <= lanes) return part_of(x);
  llvm::SmallVector<Value*, 8> parts;
  for (unsigned first = 0; first < vector->getNumElements(); first += lanes) {
    llvm::SmallVector<int, 16> mask;
    for (unsigned i = 0; i < lanes; ++i) mask.push_back(static_cast<int>(first + i));
    parts.push_back(part_of(b_.CreateShuffleVector(x, mask)));
  }
  while (parts.size() > 1) {
    llvm::SmallVector<Value*, 8> joined;
    unsigned size = llvm::cast<FixedVectorType>(parts[0]->getType())->getNumElements();
    llvm::SmallVector<int, 64> mask;
    for (unsigned i = 0; i < 2 * size; ++i) mask.push_back(static_cast<int>(i));
    for (size_t i = 0; i < parts.size(); i += 2)
      joined.push_back(b_.CreateShuffleVector(parts[i], parts[i + 1], mask));
    parts = std::move(joined);
  }
  return parts[0];
}

// AVX-512 has the two hard steps as instructions: x - round(x), 0 for infinities, and y * 2^n,
// right at both ends.
Value* Math::exp2_avx512(Value* x) {
  bool single = is_single(x);
  unsigned bits = single ? 32 : 64;
  return in_parts(x, 512 / bits, [&](Value* part) -> Value* {
    namespace I = llvm::Intrinsic;
    unsigned lanes = llvm::cast<FixedVectorType>(part->getType())->getNumElements();
    int width = lanes * bits == 512 ? 0 : lanes * bits == 256 ? 1 : 2;
    constexpr I::ID kReduce[2][3] = {
        {I::x86_avx512_mask_reduce_ps_512, I::x86_avx512_mask_reduce_ps_256,
         I::x86_avx512_mask_reduce_ps_128},
        {I::x86_avx512_mask_reduce_pd_512, I::x86_avx512_mask_reduce_pd_256,
         I::x86_avx512_mask_reduce_pd_128}};
    constexpr I::ID kScale[2][3] = {
        {I::x86_avx512_mask_scalef_ps_512, I::x86_avx512_mask_scalef_ps_256,
         I::x86_avx512_mask_scalef_ps_128},
        {I::x86_avx512_mask_scalef_pd_512, I::x86_avx512_mask_scalef_pd_256,
         I::x86_avx512_mask_scalef_pd_128}};
    Value* zero = llvm::Constant::getNullValue(part->getType());
    Value* all = llvm::Constant::getAllOnesValue(b_.getIntNTy(std::max(8u, lanes)));
    llvm::SmallVector<Value*, 5> reduce{part, b_.getInt32(8), zero,
                                        all};          // 8: to nearest even, quietly
    if (width == 0) reduce.push_back(b_.getInt32(4));  // the current rounding mode
    Value* r = b_.CreateIntrinsic(kReduce[!single][width], {}, reduce);
    Value* q = single ? polynomial(r, kExp2Single) : polynomial(r, kExp2Double);
    Value* power = fma(q, r, real(part, 1.0));
    llvm::SmallVector<Value*, 5> scale{power, b_.CreateUnaryIntrinsic(I::roundeven, part), zero,
                                       all};
    if (width == 0) scale.push_back(b_.getInt32(4));
    return b_.CreateIntrinsic(kScale[!single][width], {}, scale);
  });
}

Value* Math::exp2(Value* x) {
  Exact exact(b_);
  bool single = is_single(x);
  auto* vector = llvm::dyn_cast<FixedVectorType>(x->getType());
  if (has_avx512_ && vector && vector->getNumElements() * (single ? 32 : 64) >= 128)
    return exp2_avx512(x);
  if (dialect_ && single && !vector) return dialect_->exp2(b_, x);
  Type* bits = like(x, single ? b_.getInt32Ty() : b_.getInt64Ty());
  int mantissa = single ? 23 : 52, bias = single ? 127 : 1023;
  // Below the smallest subnormal and above the largest number nothing changes any more; NaN stays.
  Value *low = real(x, single ? -152 : -1080), *high = real(x, single ? 129 : 1025);
  x = b_.CreateSelect(b_.CreateFCmpOLT(x, low), low, x);
  x = b_.CreateSelect(b_.CreateFCmpOGT(x, high), high, x);
  // Adding 1.5 * 2^mantissa rounds to an integer, which is then also the low bits of the sum.
  Value* magic = real(x, single ? 0x1.8p23 : 0x1.8p52);
  Value* shifted = b_.CreateFAdd(x, magic);
  Value* r = b_.CreateFSub(x, b_.CreateFSub(shifted, magic));
  Value* n = b_.CreateSub(b_.CreateBitCast(shifted, bits), b_.CreateBitCast(magic, bits));
  Value* q = single ? polynomial(r, kExp2Single) : polynomial(r, kExp2Double);
  Value* power = fma(q, r, real(x, 1.0));
  // Two factors, so that subnormal results and 2^128 are reached.
  Value* half = b_.CreateAShr(n, 1);
  auto scale = [&](Value* e) {
    return b_.CreateBitCast(b_.CreateShl(b_.CreateAdd(e, whole(e, bias)), mantissa), x->getType());
  };
  return b_.CreateFMul(b_.CreateFMul(power, scale(half)), scale(b_.CreateSub(n, half)));
}

Value* Math::log2(Value* x) {
  Exact exact(b_);
  Value* result = is_single(x) ? log2_single(x) : log2_double(x);
  result = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, kInfinity)), x, result);
  result = b_.CreateSelect(b_.CreateFCmpULT(x, real(x, 0.0)), real(x, kNan), result);
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, 0.0)), real(x, -kInfinity), result);
}

Value* Math::log2_single(Value* x) {
  Type *f32 = x->getType(), *i32 = like(x, b_.getInt32Ty());
  Value* subnormal = b_.CreateFCmpOLT(x, real(x, 0x1p-126));
  Value* scaled = b_.CreateSelect(subnormal, b_.CreateFMul(x, real(x, 0x1p24)), x);
  Value* bits = b_.CreateBitCast(scaled, i32);
  Value* exponent = b_.CreateAShr(b_.CreateSub(bits, whole(bits, 0x3f3504f3)), 23);
  Value* m = b_.CreateBitCast(b_.CreateSub(bits, b_.CreateShl(exponent, 23)), f32);
  Value* f = b_.CreateFSub(m, real(x, 1.0));
  exponent = b_.CreateSub(exponent, b_.CreateSelect(subnormal, whole(bits, 24), whole(bits, 0)));
  Value* tail = b_.CreateFMul(b_.CreateFMul(f, f), polynomial(f, kLog2Single));
  return b_.CreateFAdd(b_.CreateSIToFP(exponent, f32), fma(f, real(x, kLog2Single0), tail));
}

Value* Math::log2_double(Value* x) {
  Type *f64 = x->getType(), *i64 = like(x, b_.getInt64Ty());
  Value* subnormal = b_.CreateFCmpOLT(x, real(x, 0x1p-1022));
  Value* scaled = b_.CreateSelect(subnormal, b_.CreateFMul(x, real(x, 0x1p54)), x);
  Value* bits = b_.CreateBitCast(scaled, i64);
  Value* exponent = b_.CreateAShr(b_.CreateSub(bits, whole(bits, 0x3fe6a09e667f3bcd)), 52);
  Value* m = b_.CreateBitCast(b_.CreateSub(bits, b_.CreateShl(exponent, 52)), f64);
  exponent = b_.CreateSub(exponent, b_.CreateSelect(subnormal, whole(bits, 54), whole(bits, 0)));
  // The exponent as a double without a 64-bit conversion, which few vector units have.
  Value* magic = real(x, 0x1.8p52);
  Value* k = b_.CreateFSub(
      b_.CreateBitCast(b_.CreateAdd(exponent, b_.CreateBitCast(magic, i64)), f64), magic);

  Value* f = b_.CreateFSub(m, real(x, 1.0));
  Value* half_square = b_.CreateFMul(b_.CreateFMul(f, real(x, 0.5)), f);
  Value* s = b_.CreateFDiv(f, b_.CreateFAdd(f, real(x, 2.0)));
  Value *z = b_.CreateFMul(s, s), *w = b_.CreateFMul(z, z);
  Value* series = b_.CreateFAdd(b_.CreateFMul(w, polynomial(w, kLogEven)),
                                b_.CreateFMul(z, polynomial(w, kLogOdd)));
  // log(1 + f) = high + low with 32 bits in high, so that high * kInverseLn2High is exact.
  Value* high = b_.CreateFSub(f, half_square);
  high = b_.CreateBitCast(
      b_.CreateAnd(b_.CreateBitCast(high, i64), ConstantInt::get(i64, 0xffffffff00000000ull)), f64);
  Value* low = b_.CreateFAdd(b_.CreateFSub(b_.CreateFSub(f, high), half_square),
                             b_.CreateFMul(s, b_.CreateFAdd(half_square, series)));
  Value* value_high = b_.CreateFMul(high, real(x, kInverseLn2High));
  Value* value_low = b_.CreateFAdd(b_.CreateFMul(b_.CreateFAdd(low, high), real(x, kInverseLn2Low)),
                                   b_.CreateFMul(low, real(x, kInverseLn2High)));
  Value* sum = b_.CreateFAdd(k, value_high);
  value_low = b_.CreateFAdd(value_low, b_.CreateFAdd(b_.CreateFSub(k, sum), value_high));
  return b_.CreateFAdd(value_low, sum);
}

// --- sin -----------------------------------------------------------------------------------------

Value* Math::sin(Value* x) {
  // A function of one register, so that its rare branch stays out of the kernel's loops.
  return in_parts(
      x, 8, [&](Value* part) { return b_.CreateCall(sin_function(part->getType()), {part}); });
}

Value* Math::sin_of_reduced(Value* r, Value* quadrant, bool single) {
  Value* z = b_.CreateFMul(r, r);
  Value* sine =
      fma(b_.CreateFMul(r, z), single ? polynomial(z, kSinSingle) : polynomial(z, kSinDouble), r);
  Value* cosine = single ? polynomial(z, kCosSingle) : polynomial(z, kCosDouble);
  Value* zero = whole(quadrant, 0);
  Value* odd = b_.CreateICmpNE(b_.CreateAnd(quadrant, whole(quadrant, 1)), zero);
  Value* value = b_.CreateSelect(odd, cosine, sine);
  Value* negative = b_.CreateICmpNE(b_.CreateAnd(quadrant, whole(quadrant, 2)), zero);
  return b_.CreateSelect(negative, b_.CreateFNeg(value), value);
}

// T sin(T x) for a scalar or vector of f32 or f64; f32 is computed in f64 and rounded once.
llvm::Function* Math::sin_function(Type* type) {
  bool single = type->getScalarType()->isFloatTy();
  auto* vector = llvm::dyn_cast<FixedVectorType>(type);
  unsigned lanes = vector ? vector->getNumElements() : 1;
  std::string name = std::string("sin_") + (single ? "f32x" : "f64x") + std::to_string(lanes);
  if (llvm::Function* existing = module_.getFunction(name)) return existing;
  llvm::Function* large = sin_large_function();
  auto* function = llvm::Function::Create(llvm::FunctionType::get(type, {type}, false),
                                          llvm::Function::InternalLinkage, name, module_);
  function->addFnAttr(llvm::Attribute::NoInline);
  function->addFnAttr(llvm::Attribute::NoUnwind);

  llvm::IRBuilder<>::InsertPointGuard back(b_);
  Exact exact(b_);
  auto& context = b_.getContext();
  auto* entry = llvm::BasicBlock::Create(context, "entry", function);
  auto* loop = llvm::BasicBlock::Create(context, "large", function);
  auto* fix = llvm::BasicBlock::Create(context, "fix", function);
  auto* next = llvm::BasicBlock::Create(context, "next", function);
  auto* done = llvm::BasicBlock::Create(context, "done", function);

  b_.SetInsertPoint(entry);
  Value* argument = function->getArg(0);
  Value* x = single ? b_.CreateFPExt(argument, like(argument, b_.getDoubleTy())) : argument;
  Type* i64 = like(x, b_.getInt64Ty());
  Value* magic = real(x, 0x1.8p52);
  Value* shifted = fma(x, real(x, kTwoOverPi), magic);
  Value* n = b_.CreateFNeg(b_.CreateFSub(shifted, magic));
  Value* r = fma(n, real(x, kHalfPi[0]), x);  // exact
  r = fma(n, real(x, kHalfPi[1]), r);
  if (!single) r = fma(n, real(x, kHalfPi[2]), r);
  Value* fast = sin_of_reduced(r, b_.CreateBitCast(shifted, i64), single);
  // -0 stays -0.
  fast = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, 0.0)), x, fast);
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* is_large = b_.CreateFCmpUGE(magnitude, real(x, kLargeAngle));
  Value* any = lanes == 1 ? is_large : b_.CreateOrReduce(is_large);
  b_.CreateCondBr(any, loop, done);

  b_.SetInsertPoint(loop);
  auto* lane = b_.CreatePHI(b_.getInt32Ty(), 2);
  auto* result = b_.CreatePHI(x->getType(), 2);
  lane->addIncoming(b_.getInt32(0), entry);
  result->addIncoming(fast, entry);
  b_.CreateCondBr(lanes == 1 ? is_large : b_.CreateExtractElement(is_large, lane), fix, next);

  b_.SetInsertPoint(fix);
  Value* slow = b_.CreateCall(large, {lanes == 1 ? x : b_.CreateExtractElement(x, lane)});
  Value* replaced = lanes == 1 ? slow : b_.CreateInsertElement(result, slow, lane);
  b_.CreateBr(next);

  b_.SetInsertPoint(next);
  auto* merged = b_.CreatePHI(x->getType(), 2);
  merged->addIncoming(result, loop);
  merged->addIncoming(replaced, fix);
  Value* following = b_.CreateAdd(lane, b_.getInt32(1));
  lane->addIncoming(following, next);
  result->addIncoming(merged, next);
  b_.CreateCondBr(b_.CreateICmpULT(following, b_.getInt32(lanes)), loop, done);

  b_.SetInsertPoint(done);
  auto* final_value = b_.CreatePHI(x->getType(), 2);
  final_value->addIncoming(fast, entry);
  final_value->addIncoming(merged, next);
  b_.CreateRet(single ? b_.CreateFPTrunc(final_value, type) : final_value);
  return function;
}

// double sin_large(double x) for |x| >= 2^30 (Payne and Hanek): x = m * 2^e, and of 2 / pi only the
// 192 bits matter that make m * 2^e * 2 / pi modulo 4. NaN for infinities and NaN.
llvm::Function* Math::sin_large_function() {
  const char* name = "sin_large";
  if (llvm::Function* existing = module_.getFunction(name)) return existing;
  Type *f64 = b_.getDoubleTy(), *i64 = b_.getInt64Ty(), *i128 = b_.getInt128Ty();
  auto* function = llvm::Function::Create(llvm::FunctionType::get(f64, {f64}, false),
                                          llvm::Function::InternalLinkage, name, module_);
  function->addFnAttr(llvm::Attribute::NoInline);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  auto* table_value = llvm::ConstantDataArray::get(b_.getContext(), llvm::ArrayRef(kTwoOverPiBits));
  auto* table = new llvm::GlobalVariable(module_, table_value->getType(), true,
                                         llvm::GlobalValue::PrivateLinkage, table_value,
                                         "two_over_pi", nullptr, llvm::GlobalValue::NotThreadLocal,
                                         dialect_ ? dialect_->words().table_space : 0);

  llvm::IRBuilder<>::InsertPointGuard back(b_);
  Exact exact(b_);
  b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", function));
  Value* x = function->getArg(0);
  auto c = [&](uint64_t v) { return ConstantInt::get(i64, v); };
  Value* bits = b_.CreateBitCast(x, i64);
  Value* exponent = b_.CreateAnd(b_.CreateLShr(bits, 52), c(0x7ff));
  Value* finite = b_.CreateICmpNE(exponent, c(0x7ff));
  exponent = b_.CreateSelect(finite, exponent, c(1100));
  Value* m = b_.CreateOr(b_.CreateAnd(bits, c(0xfffffffffffffull)), c(0x10000000000000ull));
  // First bit: 64 zeros, then weight 2^-1; bits before e - 2 make multiples of 4.
  Value* position = b_.CreateAdd(exponent, c(static_cast<uint64_t>(64 - 1075 - 2)));
  Value *word = b_.CreateLShr(position, 6), *distance = b_.CreateAnd(position, c(63));
  Value* words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = b_.CreateLoad(
        i64, b_.CreateGEP(i64, table, b_.CreateAdd(word, c(static_cast<uint64_t>(i)))));
  }
  Value* window[3];
  for (int i = 0; i < 3; ++i) {
    window[i] =
        b_.CreateIntrinsic(llvm::Intrinsic::fshl, {i64}, {words[i], words[i + 1], distance});
  }
  auto wide = [&](Value* v) { return b_.CreateZExt(v, i128); };
  auto high_of = [&](Value* v) { return b_.CreateTrunc(b_.CreateLShr(v, 64), i64); };
  Value* product2 = b_.CreateMul(wide(m), wide(window[2]));
  Value* product1 = b_.CreateAdd(b_.CreateMul(wide(m), wide(window[1])), wide(high_of(product2)));
  Value* low = b_.CreateTrunc(product1, i64);
  Value* high = b_.CreateAdd(b_.CreateMul(m, window[0]), high_of(product1));
  // high:low is x * 2 / pi / 4 modulo 1. Two bits are the quadrant after rounding to the nearest.
  Value* quadrant = b_.CreateLShr(b_.CreateAdd(high, c(uint64_t{1} << 61)), 62);
  Value* rest = b_.CreateSub(high, b_.CreateShl(quadrant, 62));
  Value* turns =
      b_.CreateFAdd(b_.CreateFMul(b_.CreateSIToFP(rest, f64), ConstantFP::get(f64, 0x1p-62)),
                    b_.CreateFMul(b_.CreateUIToFP(low, f64), ConstantFP::get(f64, 0x1p-126)));
  Value* value =
      sin_of_reduced(b_.CreateFMul(turns, ConstantFP::get(f64, kHalfPi[0])), quadrant, false);
  value = b_.CreateSelect(b_.CreateICmpSLT(bits, c(0)), b_.CreateFNeg(value), value);
  b_.CreateRet(b_.CreateSelect(finite, value, ConstantFP::get(f64, kNan)));
  return function;
}

// --- random numbers ------------------------------------------------------------------------------

Value* Math::threefry(Value* counter, Value* key) {
  constexpr unsigned kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  Type *i64 = counter->getType(), *i32 = like(counter, b_.getInt32Ty());
  auto low = [&](Value* v) { return b_.CreateTrunc(v, i32); };
  auto high = [&](Value* v) { return b_.CreateTrunc(b_.CreateLShr(v, 32), i32); };
  Value* keys[3] = {low(key), high(key), nullptr};
  keys[2] = b_.CreateXor(b_.CreateXor(keys[0], keys[1]), ConstantInt::get(i32, 0x1bd11bda));
  Value *x0 = b_.CreateAdd(low(counter), keys[0]), *x1 = b_.CreateAdd(high(counter), keys[1]);
  for (unsigned group = 0; group < 5; ++group) {
    for (unsigned rotation : kRotations[group % 2]) {
      x0 = b_.CreateAdd(x0, x1);
      x1 = b_.CreateXor(x0, b_.CreateIntrinsic(llvm::Intrinsic::fshl, {i32},
                                               {x1, x1, ConstantInt::get(i32, rotation)}));
    }
    x0 = b_.CreateAdd(x0, keys[(group + 1) % 3]);
    x1 = b_.CreateAdd(x1, b_.CreateAdd(keys[(group + 2) % 3], ConstantInt::get(i32, group + 1)));
  }
  return b_.CreateOr(b_.CreateShl(b_.CreateZExt(x1, i64), 32), b_.CreateZExt(x0, i64));
}

}  // namespace tinyshard::codegen
