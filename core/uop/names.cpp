// Names of values: Identity nodes, which keep tensors apart whose values are equal, until the
// passes.
//
//   Tensor p = full({2}, 5), q = full({2}, 5), y = p.reshape({1, 2}).reshape({2}) * q;
//
//   %0 = const f32[2] 5                  p is %1, q is %4: to differentiate by p is not to
//   %1 = identity f32[2] [1] %0          differentiate by q.
//   %2 = reshape f32[1, 2] %1
//   %3 = reshape f32[2] %2               Had the builder looked through %2, y would not depend
//   %4 = identity f32[2] [2] %0          on the reshaped tensor.
//   %5 = mul f32[2] %3 %4
//
//   without_names:  %0 = const f32[2] 5,  %1 = mul f32[2] %0 %0
#include <atomic>

#include "core/uop/args.h"
#include "core/uop/graph.h"
#include "core/uop/node_map.h"

namespace tinyshard {

UOp named(const UOp& x) {
  static std::atomic<int64_t> next{1};
  const int64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return UOp::make(Op::Identity, x.dtype(), {x}, DimSpan(&number, 1));
}

UOp under_names(UOp x) {
  while (x.op() == Op::Identity) x = x.src(0);
  return x;
}

int64_t name_of(const UOp& x) { return x.op() == Op::Identity ? identity_number(*x) : 0; }

namespace {

// The op of x over other sources, by the builder that folds it.
UOp folded(const UOp& x, std::span<const UOp> src) {
  switch (x.op()) {
    case Op::Reshape:
      return reshape(src[0], x.shape());
    case Op::Expand:
      return expand(src[0], x.shape());
    case Op::Permute:
      return permute(src[0], x->arg());
    case Op::Pad:
      return pad(src[0], x->arg());
    case Op::Shrink:
      return shrink(src[0], x->arg());
    case Op::Flip:
      return flip(src[0], x->arg());
    default:
      return x.with_src(src);
  }
}

}  // namespace

std::vector<UOp> without_names(const Graph& graph) {
  const NodeOrder& order = graph.order();
  NodeMap<UOp> plain(order.size());
  std::vector<UOp> src;
  for (const UOp& x : order) {
    const OriginScope origin(origin_id(x));
    src.clear();
    bool changed = false;
    for (const UOp& s : x->src()) {
      src.push_back(plain.at(s));
      changed = changed || !(src.back() == s);
    }
    plain[x] = x.op() == Op::Identity ? src[0] : changed ? folded(x, src) : x;
  }
  std::vector<UOp> out;
  out.reserve(graph.roots().size());
  for (const UOp& root : graph.roots()) out.push_back(plain.at(root));
  return out;
}

}  // namespace tinyshard
