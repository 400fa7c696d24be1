// Products with a region: made, and taken apart again.
#include "core/uop/product_region.h"

#include <vector>

#include "core/dtype/half.h"
#include "core/uop/args.h"

namespace tinyshard {

UOp region_product(const ProductRegion& region, DType dtype, const UOp& a, const UOp& b,
                   int64_t batch, std::span<const UOp> operands) {
  std::vector<UOp> src{a, b};
  src.insert(src.end(), operands.begin(), operands.end());
  // Borrowed: nobody counts who refers to it.
  return UOp::make(Op::Dot, dtype, src, Dims{batch, region.number},
                   std::shared_ptr<const void>(std::shared_ptr<const void>(), &region));
}

UOp sums_of(const UOp& x) {
  return UOp::make(Op::Dot, accumulator(x.dtype()), {x.src(0), x.src(1)}, Dims{dot_batch(*x)});
}

UOp from_sums(const UOp& x, const UOp& sums) {
  return cast(region_of(x)->spell(sums, x->src().subspan(2)), x.dtype());
}

}  // namespace tinyshard
