// Elementwise ops as LLVM instructions on scalars or vectors: what every op means, on every type,
// with no call to a math library. Internal to core/codegen; includes LLVM.
//
// In registers Bool is i1, floats of 8 and 16 bits are f32, and Index is i64, or i32 in vectors whose values
// fit.
#pragma once
#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/IR/IRBuilder.h>

#include "core/codegen/gpu/dialect.h"
#include "core/dtype/dtype.h"
#include "core/runtime/target.h"
#include "core/uop/op.h"

namespace tinyshard::codegen {

class Arith {
 public:
  Arith(llvm::IRBuilder<>& builder, llvm::Module& module, const Target& target);

  // An x86 processor with the vectors of AVX and without those of AVX-512.
  bool has_plain_avx() const { return has_plain_avx_; }

  // Types of a value in registers and in memory; lanes == 1 is a scalar.
  llvm::Type* type(DType dtype, int lanes = 1) const;
  llvm::Type* memory_type(DType dtype, int lanes = 1) const;
  // `by_quads`: the lanes change places, see Scope.
  llvm::Value* from_memory(llvm::Value* x, DType dtype, bool by_quads = false);
  // The element in the lowest bytes of a 64-bit integer.
  llvm::Value* from_bits(llvm::Value* bits, DType dtype);
  // `rounded`: x is known to be a value of the 16-bit type already.
  llvm::Value* to_memory(llvm::Value* x, DType dtype, bool rounded = false);
  // On a GPU, returns the 16 bits that x was read from if it is only moved, because rounding them
  // anew would change the bits of a NaN. Null if x was computed. `depth` limits how many choices
  // between such values are looked through.
  llvm::Value* moved_bits(llvm::Value* x, DType dtype, int depth = 4);

  llvm::Value* constant(DType dtype, int64_t bits, int lanes = 1);
  llvm::Value* splat(llvm::Value* scalar, int lanes);
  // 0, step, 2 * step...
  llvm::Value* ramp(llvm::Type* element, int lanes, int64_t step);
  llvm::Value* index_width(llvm::Value* index, unsigned bits);  // i32 or i64 lanes

  // An elementwise op, its result rounded to `dtype`. `source` is the type of the first operand;
  // Where takes its condition first. Operands have equal lanes.
  llvm::Value* emit(Op op, DType dtype, DType source, llvm::ArrayRef<llvm::Value*> x);
  // Division on Index: rounds to minus infinity. `low` is a lower bound of x.
  llvm::Value* index_division(Op op, llvm::Value* x, llvm::Value* by, int64_t low);
  llvm::Value* cast(llvm::Value* x, DType from, DType to);

  // A result that was computed in f32, as a value of `dtype`.
  llvm::Value* rounded(llvm::Value* x, DType dtype);

  llvm::Value* identity(ReduceOp op, DType dtype, int lanes);
  // Partial results of sums and products of 16-bit floats stay in f32.
  llvm::Value* combine(ReduceOp op, DType dtype, llvm::Value* accumulator, llvm::Value* x);
  // Lanes to one, pairwise. `by_quads` says in which places the lanes are (Scope); the order of
  // the additions is the same.
  llvm::Value* horizontal(ReduceOp op, DType dtype, llvm::Value* x, bool by_quads);
  // Reduces the lanes of several values, each in the same order of additions as one alone, with as
  // many values side by side in a register as it has lanes.
  llvm::SmallVector<llvm::Value*, 8> horizontals(ReduceOp op, DType dtype,
                                                 llvm::ArrayRef<llvm::Value*> values,
                                                 int register_lanes, bool by_quads);

 private:
  llvm::Value* compute(Op op, DType dtype, DType source, llvm::ArrayRef<llvm::Value*> x);
  llvm::Value* bitcast(llvm::Value* x, DType from, DType to);
  llvm::Value* divide(Op op, DType dtype, llvm::Value* x, llvm::Value* by);
  llvm::Value* quotient(DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* shift(Op op, DType dtype, llvm::Value* x, llvm::Value* by);
  llvm::Value* extremum(bool largest, DType dtype, llvm::Value* a, llvm::Value* b);
  // f32 to f32. `same_nan`: as the CPU makes it.
  llvm::Value* round_bf16(llvm::Value* x, bool same_nan = false);
  llvm::Value* round_f16(llvm::Value* x);
  llvm::Value* f16_bits(llvm::Value* x);  // f32 to i16
  // f64 to f32, and an integer to one that f64 holds, so that rounding to 16 bits is the only one.
  llvm::Value* odd_f32(llvm::Value* x);
  llvm::Value* odd_integer(llvm::Value* x, DType dtype);
  llvm::Value* kept_as_mask(llvm::Value* x);
  llvm::Value* from_f16_bits(llvm::Value* x);
  // float8.cpp
  llvm::Value* from_float8(llvm::Value* x, DType dtype);
  llvm::Value* float8_bits(llvm::Value* x, DType dtype);  // f32 to i8

  llvm::IRBuilder<>& b_;
  llvm::Module& module_;
  bool has_f16_, has_avx512_, has_plain_avx_;
  bool has_masks_of_64_;       // an x86 processor with mask registers of as many lanes
  const GpuDialect* dialect_;  // null on processors
};

// The lane of the i-th of so many neighbours in a vector. `by_quads` (Scope) is the order of memory
// for up to eight of them.
inline int lane_of(int i, int lanes, bool by_quads) {
  return by_quads ? i / 8 * 4 + i % 4 + i / 4 % 2 * (lanes / 2) : i;
}

// math.cpp: accurate to about an ulp (on GPUs exp2 of f32 to two), right at 0, infinities, NaN and
// subnormals.
class Math {
 public:
  Math(llvm::IRBuilder<>& builder, llvm::Module& module, bool has_avx512, const GpuDialect* dialect)
      : b_(builder), module_(module), has_avx512_(has_avx512), dialect_(dialect) {}
  llvm::Value* exp2(llvm::Value* x);  // f32, f64
  llvm::Value* log2(llvm::Value* x);
  llvm::Value* sin(llvm::Value* x);
  llvm::Value* fmod(llvm::Value* a, llvm::Value* b);              // exact; remainder.cpp
  llvm::Value* threefry(llvm::Value* counter, llvm::Value* key);  // u64

 private:
  llvm::Value* in_parts(llvm::Value* x, unsigned lanes,
                        llvm::function_ref<llvm::Value*(llvm::Value*)> part_of);
  llvm::Value* exp2_avx512(llvm::Value* x);
  llvm::Function* sin_function(llvm::Type* type);
  llvm::Function* fmod_function(llvm::Type* type);
  llvm::Function* sin_large_function();
  llvm::Value* sin_of_reduced(llvm::Value* r, llvm::Value* quadrant, bool single);
  llvm::Value* log2_single(llvm::Value* x);
  llvm::Value* log2_double(llvm::Value* x);
  llvm::Value* polynomial(llvm::Value* x, llvm::ArrayRef<double> coefficients);
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);

  llvm::IRBuilder<>& b_;
  llvm::Module& module_;
  bool has_avx512_;
  const GpuDialect* dialect_;
};

// Flags of the products and sums that may become fused multiply-adds; all other code has none.
inline llvm::FastMathFlags contraction() {
  llvm::FastMathFlags flags;
  flags.setAllowContract(true);
  return flags;
}

}  // namespace tinyshard::codegen
