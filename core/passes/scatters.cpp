#include "core/passes/scatters.h"

#include <algorithm>

#include "core/rewrite/pattern.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

// What x shows, possibly in another shape or in a wider type, when that is in memory anyway; null
// else.
UOp in_memory(UOp x) {
  auto widens = [](const UOp& y) {
    return y.op() == Op::Cast && is_float(y.dtype()) && is_float(y.src(0).dtype()) &&
           itemsize(y.src(0).dtype()) < itemsize(y.dtype());
  };
  while (x.op() == Op::Reshape || widens(x)) x = x.src(0);
  bool there = x.op() == Op::Buffer || x.op() == Op::Collective || x.op() == Op::Dot;
  return there ? x : UOp();
}

}  // namespace

std::vector<UOp> start_scatters(std::span<const UOp> roots,
                                const std::function<bool(const LibraryCall&)>& library_supports) {
  const std::vector<UOp> order = toposort(roots);  // keeps the nodes that are counted
  auto is_scatter = [](const UOp& x) { return x.op() == Op::ScatterAdd; };
  if (std::ranges::none_of(order, is_scatter)) return {roots.begin(), roots.end()};
  const NodeMap<int> uses = count_uses(order, roots);
  return rewrite_once(roots, [&](const UOp& x) {
    // A sum in 16 bits is of a scattered one that was rounded.
    if (x.op() != Op::Add || accumulator(x.dtype()) != x.dtype()) return UOp();
    for (int side : {0, 1}) {
      const UOp& scatter = x.src(side);
      const int* count = uses.find(scatter);
      if (!is_scatter(scatter) || scatter->sources != 2 || !count || *count != 1) continue;
      UOp base = in_memory(x.src(1 - side));
      if (!base) continue;
      UOp src[] = {scatter.src(0), scatter.src(1), reshape(base, x.shape())};
      UOp result = scatter.with_src(src);
      if (library_supports(row_major_call(result))) return result;
    }
    return UOp();
  });
}

}  // namespace tinyshard
