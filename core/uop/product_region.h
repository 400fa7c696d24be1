// A region of the graph that a vendor's library computes as one product: the sums of a Dot, and what
// is done to them before they are rounded and stored. It is one node, of which the IR knows nothing
// but this description:
//
//   %3 = dot f32[2, 5] [0] %0 %1                 %3 = dot f32[2, 5] [0, 1] %0 %1 %2     bias
//   %4 = add f32[2, 5] %3 (%2 as a row)
//
// A provider lists the regions of its library and finds them in graphs
// (core/runtime/library_provider.h). Everything else goes by what a region is spelled as: loops where
// a library refuses it, BEAM's trials, interpreters.
#pragma once
#include <span>
#include <string_view>

#include "core/uop/uop.h"

namespace tinyshard {

struct ProductRegion {
  // Stands in the argument of its products, so hashes and texts of graphs are the same in all
  // processes: never 0, and no other region of the program has it.
  int64_t number;
  std::string_view name;  // "bias, ReLU"
  // Gives the region's result for these sums: ops of the graph, in the type of the sums and of their shape.
  // To round the result is not a part of it.
  UOp (*spell)(const UOp& sums, std::span<const UOp> operands);
  // Why these operands beside a and b do not go with a result of this type and shape; null where
  // they do.
  const char* (*misfit)(DType type, DimSpan shape, std::span<const UOp> operands);
  // The result may lie where its first operand beside a and b does, which has its shape and type.
  bool in_place = false;
};

// Dot(a, b, operands...) {batch axes, number}, whose payload is the region: it lives until the process
// ends. InternalError where the operands do not fit.
UOp region_product(const ProductRegion& region, DType dtype, const UOp& a, const UOp& b,
                   int64_t batch, std::span<const UOp> operands);

// The region of a product; null for a plain one and for all other ops.
inline const ProductRegion* region_of(const UOp& x) {
  return x.op() == Op::Dot ? static_cast<const ProductRegion*>(x->payload.get()) : nullptr;
}

// The product of x alone, a Dot with a region, in the type in which it is summed; and what the region
// makes of these sums, rounded to the type of x.
UOp sums_of(const UOp& x);
UOp from_sums(const UOp& x, const UOp& sums);

}  // namespace tinyshard
