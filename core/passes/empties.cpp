// The result of an op over empty sources is known without computing anything:
//
//   pad f32[1] over f32[0]                  0, as everything outside of the source
//   reduce f32[1] max over [0] of f32[0]    -inf, the identity of the reduction
//   dot f32[2, 3] of f32[2, 0], f32[0, 3]   0, a sum of no products; convolutions alike
//   gather f32[4] of f32[0]                 0, as every index is out of range
//   scatter_add f32[4] of no indices        0, or the base or identity that it starts from
//   decompose f32[3, 3] of f32[3, 0]        the identity, a square factor of nothing
//
// Elementwise ops have sources of their own shape, so a result with elements has sources with
// elements. The parts of a sharded dim are rounded up: a part is empty where the whole is.
#include "core/passes/empties.h"

#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/own_kernel.h"

namespace tinyshard {
namespace {

bool is_empty(const UOp& x) { return x->numel() == 0; }

UOp zeros_like(const UOp& x) { return const_int(x.dtype(), 0, x.shape()); }

UOp identities(const UOp& x) {
  const DimSpan shape = x.shape();
  const size_t last = shape.size() - 1;
  return cast(binary(Op::CmpEq, iota_along(shape, last - 1), iota_along(shape, last)), x.dtype());
}

UOp folded(const UOp& x) {
  switch (x.op()) {
    case Op::Const:
    case Op::Buffer:
    case Op::Assign:  // writes nothing, but is the storage that it names
      return {};
    default:
      break;
  }
  if (is_empty(x)) return zeros_like(x);
  if (std::ranges::none_of(x->src(), is_empty)) return {};
  if (x.op() == Op::Reduce)
    return reshaped_const(identity_of(reduce_arg(*x).op, x.dtype()), x.shape());
  if (x.op() == Op::ScatterAdd && x->sources == 2)
    return reshaped_const(identity_of(scatter_arg(*x).op, x.dtype()), x.shape());
  if (x.op() == Op::ScatterAdd) return cast(x.src(2), x.dtype());
  if (x.op() == Op::Decompose) return identities(x);
  if (x.op() == Op::After || own_kernel(x)) return {};
  return zeros_like(x);
}

}  // namespace

std::vector<UOp> fold_empties(const Graph& graph) { return rewrite_once(graph, folded); }

}  // namespace tinyshard
