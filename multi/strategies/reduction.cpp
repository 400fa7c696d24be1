// A reduction over a divided dim leaves each device one term.
#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {

LocalValue reduction(const UOp& x, LocalValues& values) {
  LocalValue v = values.lying(x.src(0));
  v.gather_on_use = nullptr;  // of parts, too, a sum leaves a term each
  const auto [op, axes] = reduce_arg(*x);
  if (!v.mesh) return rebuilt(x, {v}, v);
  for (const Placement& p : v.place) {
    if (p.is_partial() && p.op != op) {
      v = settled(std::move(v), x.src(0).shape());
      break;
    }
  }
  std::vector<Placement> placed = v.place;
  for (Placement& p : placed) {
    if (!p.is_shard() || std::ranges::find(axes, p.dim) == axes.end()) continue;
    v.local = with_padding_filled(v, x.src(0).shape(), p.dim, identity_of(op, x.dtype()));
    p = Partial(op);
  }
  LocalValue result = rebuilt(x, {v}, {UOp(), v.mesh, placed});
  const std::vector<Placement> completed = values.completed_at(x, placed);
  if (completed == placed) return result;
  result.origin = v.origin;
  return redistribute(std::move(result), x.shape(), *v.mesh, completed);
}

}  // namespace tinyshard
