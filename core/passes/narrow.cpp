// The readers of a product say in which type it may be stored:
//
//   %2 = dot f32[4, 6] %0 %1
//   %3 = cast bf16[4, 6] %2          %3 by dot bf16[4, 6] %0 %1
//   %4 = reshape bf16[2, 2, 6] %3
//   %5 = contiguous %4               %5 by the same product, reshaped
//   %6 = collective %5
#include "core/passes/narrow.h"

#include "core/dtype/half.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

bool narrows(DType from, DType to) { return from == DType::F32 && is_half(to); }

// The product that is all there is between a copy for a collective and the product's operands, in the
// type that it has anyway: wider stores take longer than to widen the result afterwards. Null where
// there is none.
UOp product_sent(const RegionQuery& query, const UOp& copy) {
  UOp x = copy.src(0);
  const int64_t columns = x.shape().empty() ? 0 : x.shape().back();
  while (query.uses().at(x) == 1 &&
         (x.op() == Op::Reshape || (x.op() == Op::Cast && x.dtype() == copy.dtype()))) {
    x = x.src(0);
  }
  const bool as_asked = x.dtype() == copy.dtype() || narrows(x.dtype(), copy.dtype());
  const bool is_it = as_asked && x.op() == Op::Dot && dot_batch(*x) == 0;
  return is_it && x.shape().back() == columns ? x : UOp();
}

}  // namespace

std::vector<Replacement> find_narrow_products(const RegionQuery& query) {
  std::vector<Replacement> found;
  auto store = [&](const UOp& x, const UOp& product) {
    if (product->sources != 2 || query.uses().at(product) != 1) return;
    const UOp stored = UOp::make(Op::Dot, x.dtype(), product->src(), product->arg());
    if (query.supports(row_major_call(stored))) found.push_back({x, reshape(stored, x.shape())});
  };
  for (const UOp& x : query.graph().order()) {
    if (x.op() == Op::Cast && x.src(0).op() == Op::Dot && narrows(x.src(0).dtype(), x.dtype()))
      store(x, x.src(0));
    if (x.op() != Op::Collective || x.src(0).op() != Op::Contiguous) continue;
    if (const UOp product = product_sent(query, x.src(0))) store(x.src(0), product);
  }
  return found;
}

}  // namespace tinyshard
