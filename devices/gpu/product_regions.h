// The regions of products that cuBLASLt and hipBLASLt have alike: one list for all makers of GPUs, and
// the provider that finds them in graphs (epilogues.h, updates.h). How a region runs is told in the
// maker's folder, as devices/cuda/matmul_spec.h does.
#pragma once
#include <cstdint>
#include <optional>

#include "core/runtime/library_provider.h"
#include "core/uop/product_region.h"

namespace tinyshard::gpu {

// `c` has the type of the result; the GELU is the one by tanh (core/ops/activations.h).
enum class Epilogue : uint8_t {
  None,
  Bias,          // x + c[n]
  BiasRelu,      // max(x + c[n], 0)
  BiasGelu,      // gelu(x + c[n])
  GeluBackward,  // x * gelu'(c[batch.., m, n])
  Update,        // s[0] x + s[1] c[batch.., m, n], with f32 factors; x + c without s; in place of c
};

const ProductRegion& product_region(Epilogue epilogue);  // not of None

// Returns what a Dot does to its sums; nothing where that is a region of somebody else.
std::optional<Epilogue> epilogue_of(const UOp& dot);

// With the number of dims in front that a and b share; a plain product for None, without operands.
UOp product_with(Epilogue epilogue, DType dtype, const UOp& a, const UOp& b, int64_t batch,
                 std::span<const UOp> operands);

// Finds all of them, and attention of tokens (row_attention.h).
const LibraryProvider& products_provider();

}  // namespace tinyshard::gpu
