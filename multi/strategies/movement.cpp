// Movements of elements: a dim that stays whole, or divides as before, is moved part by part.
#include <algorithm>

#include "core/base/error.h"
#include "multi/strategies/realigned.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {

LocalValue movement(const UOp& x, LocalValues& values) {
  LocalValue v = values.of(x.src(0));
  Dims global(x.src(0).shape().begin(), x.src(0).shape().end());
  auto arg = x->arg();
  if (!v.mesh) return rebuilt(x, {v}, v);
  // A reduction is completed before its result is repeated: a mean travels, not rows of means.
  if (x.op() == Op::Expand && x->numel() > x.src(0)->numel()) v = settled(std::move(v), global);
  // A dim is made whole where its parts cannot do the op by themselves.
  std::vector<Placement> placed = v.place;
  for (size_t a = 0; a < placed.size(); ++a) {
    if (!v.place[a].is_shard()) continue;
    int dim = v.place[a].dim;
    bool local = true;
    switch (x.op()) {
      case Op::Reshape: {
        placed[a].dim = reshaped_dim(global, x.shape(), dim, parts_of(v, dim));
        local = placed[a].dim >= 0;
        break;
      }
      case Op::Permute:
        placed[a].dim = int(std::ranges::find(arg, dim) - arg.begin());
        break;
      case Op::Expand:
        local = global[dim] == x.shape()[dim];
        break;
      default:
        break;
    }
    if (local) continue;
    if (is_const(v.local)) {  // every part of it is one
      for (Placement& p : v.place) p = p.is_shard() ? Replicate : p;
      v.local = reshaped_const(v.local, global);
    } else {
      auto moved = x.op() == Op::Reshape ? realigned(v, global, x.shape(), dim) : std::nullopt;
      v = moved ? std::move(*moved) : without_shard(std::move(v), global, dim);
    }
    placed = v.place;
    a = size_t(-1);  // look at all axes again
  }
  Sharding after{*v.mesh, placed};
  Dims local_arg(arg.begin(), arg.end());
  if (x.op() == Op::Reshape || x.op() == Op::Expand) local_arg = after.local_shape(x.shape());
  UOp local = v.local;
  switch (x.op()) {
    case Op::Reshape:
      local = reshape(local, local_arg);
      break;
    case Op::Expand:
      local = expand(local, local_arg);
      break;
    case Op::Permute:
      local = permute(local, local_arg);
      break;
    default:
      throw InternalError("no sharding rule for " + describe(*x));
  }
  return {local, v.mesh, placed};
}

}  // namespace tinyshard
