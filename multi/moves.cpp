// Mesh axis by mesh axis, innermost first. What an axis needs follows from its two placements
// alone:
//
//   Partial -> Shard(d)       reduce-scatter, where no other axis splits d
//   Partial -> Replicate      all-reduce
//   Shard(a) -> Shard(b)      all-to-all, where no other axis splits a or b by then
//   Shard(a) -> others        all-gather, and a slice afterwards for another shard
//   two axes of one size      change placements: parts go from device (i, j) to device (j, i), where
//                             no other axis splits their dims
//   Replicate -> Shard(d)     a slice, which sends nothing; first, where no other axis splits d,
//                             so that others send the part
//   Replicate -> Partial(sum) the first device along the axis keeps the value as its term, the terms
//                             of the others are zeros; last, so that they are of the final part
//   Shard(d) -> Partial(sum)  the part at its place and zeros around it are a term already
//
// Axes that split one dim nest. f32[8] on a mesh of 2 x 2, {Shard(0), Shard(0)} -> {Replicate,
// Shard(0)}: the outer axis changes, so the inner one is gathered first ([2] to [4]), then the
// outer one ([4] to [8]), and a slice cuts the inner shard again ([8] to [4]).
#include "multi/moves.h"

#include "multi/wire.h"

namespace tinyshard {

std::vector<Move> moves_between(const Mesh& mesh, const std::vector<Placement>& from,
                                const std::vector<Placement>& wanted) {
  const int axes = int(wanted.size());
  std::vector<Placement> now = from;
  for (int a = 0; a < axes; ++a) {
    if (mesh.axes()[size_t(a)].size == 1) now[a] = wanted[a];  // all placements are the same there
  }
  auto splits = [](const Placement& p, int dim) { return p.is_shard() && p.dim == dim; };
  std::vector<Move> moves;
  // First, as each device sends at most its part, and the axes are done with.
  auto others_split = [&](int a, int b, const Placement& p) {
    for (int c = 0; c < axes; ++c) {
      if (c != a && c != b && p.is_shard() && splits(now[c], p.dim)) return true;
    }
    return false;
  };
  for (int a = 0; a < axes; ++a) {
    for (int b = a + 1; b < axes; ++b) {
      const bool swaps = mesh.axes()[size_t(a)].size == mesh.axes()[size_t(b)].size &&
                         !(now[a] == now[b]) && now[a] == wanted[b] && now[b] == wanted[a] &&
                         !now[a].is_partial() && !now[b].is_partial();
      if (!swaps || others_split(a, b, now[a]) || others_split(a, b, now[b])) continue;
      moves.push_back({a, CollectiveOp::AllToAll, now[b], b});
      std::swap(now[a], now[b]);
    }
  }
  auto alone_now = [&](int axis, int dim) {  // no other axis splits this dim
    for (int a = 0; a < axes; ++a) {
      if (a != axis && splits(now[a], dim)) return false;
    }
    return true;
  };
  auto alone = [&](int axis, int dim) {  // nor will one
    for (int a = 0; a < axes; ++a) {
      if (a != axis && splits(wanted[a], dim)) return false;
    }
    return alone_now(axis, dim);
  };
  // An outer axis changes only when no inner one is in the way.
  std::vector<bool> changes(axes);
  for (int a = 0; a < axes; ++a) changes[a] = !(now[a] == wanted[a]);
  for (int a = 0; a < axes; ++a) {
    if (!changes[a]) continue;
    for (int b = a + 1; b < axes; ++b) {
      bool nested = (now[a].is_shard() && splits(now[b], now[a].dim)) ||
                    (wanted[a].is_shard() && splits(now[b], wanted[a].dim));
      changes[b] = changes[b] || nested;
    }
  }
  auto add = [&](int axis, std::optional<CollectiveOp> op, Placement to) {
    moves.push_back({axis, op, to});
    now[axis] = to;
  };
  for (int a = 0; a < axes; ++a) {
    if (!now[a].is_replicate() || !wanted[a].is_shard() || !alone(a, wanted[a].dim)) continue;
    add(a, std::nullopt, wanted[a]);
    changes[a] = false;
  }
  for (int a = axes; a-- > 0;) {
    if (!changes[a]) continue;
    const Placement source = now[a], to = wanted[a];
    if (source.is_partial() && to.is_shard() && alone(a, to.dim)) {
      add(a, CollectiveOp::ReduceScatter, to);
    } else if (source.is_partial() && !(to == source)) {
      add(a, CollectiveOp::AllReduce, Replicate);
    } else if (source.is_shard() && to.is_shard() && source.dim != to.dim && alone(a, to.dim) &&
               alone_now(a, source.dim)) {
      add(a, CollectiveOp::AllToAll, to);
    } else if (source.is_shard() && to == Partial(ReduceOp::Sum)) {
      add(a, std::nullopt, to);
    } else if (source.is_shard()) {
      add(a, CollectiveOp::AllGather, Replicate);
    }
  }
  for (int a = 0; a < axes; ++a) {
    const bool cut = wanted[a].is_shard(), term = wanted[a] == Partial(ReduceOp::Sum);
    if (!(now[a] == wanted[a]) && (cut || term)) add(a, std::nullopt, wanted[a]);
  }
  return moves;
}

namespace {

// Calls see(op, axis, bytes that each device sends) for each move that sends something.
template <class See>
void each_sent(DType type, DimSpan global, const Mesh& mesh, const std::vector<Placement>& from,
               const std::vector<Placement>& wanted, const See& see) {
  if (from == wanted) return;
  std::vector<Placement> now = from;
  for (const Move& move : moves_between(mesh, from, wanted)) {
    const Placement was = now[size_t(move.axis)];
    const auto parts = double(mesh.axes()[size_t(move.axis)].size);
    auto elements = [&] { return double(product(Sharding{mesh, now}.local_shape(global))); };
    const double before = elements();
    if (move.swapped_with >= 0) {
      see(CollectiveOp::AllToAll, move.axis, before * double(itemsize(type)));
      std::swap(now[size_t(move.axis)], now[size_t(move.swapped_with)]);
      continue;
    }
    now[size_t(move.axis)] = move.to;
    if (!move.op) continue;
    const double after = elements();
    const auto size = double(itemsize(was.is_partial() ? wire_type(type, was.op) : type));
    switch (*move.op) {
      case CollectiveOp::AllReduce:
        see(*move.op, move.axis, 2 * (parts - 1) / parts * before * size);
        break;
      case CollectiveOp::AllGather:
        see(*move.op, move.axis, (parts - 1) * before * size);
        break;
      case CollectiveOp::ReduceScatter:
        see(*move.op, move.axis, (parts - 1) * after * size);
        break;
      default: {  // an all-to-all of the part, with the dim that is cut next rounded up
        Dims cut = Sharding{mesh, now}.local_shape(global);
        std::vector<Placement> whole = now;
        whole[size_t(move.axis)] = was;
        cut[size_t(was.dim)] = Sharding{mesh, whole}.local_shape(global)[size_t(was.dim)];
        see(*move.op, move.axis, (parts - 1) * double(product(cut)) * size);
      }
    }
  }
}

}  // namespace

double bytes_moved(DType type, DimSpan global, const Mesh& mesh, const std::vector<Placement>& from,
                   const std::vector<Placement>& wanted) {
  double sum = 0;
  each_sent(type, global, mesh, from, wanted,
            [&](CollectiveOp, int, double bytes) { sum += bytes; });
  return sum;
}

double seconds_moved(DType type, DimSpan global, const Mesh& mesh,
                     const std::vector<Placement>& from, const std::vector<Placement>& wanted,
                     LinkModel& links) {
  double sum = 0;
  each_sent(type, global, mesh, from, wanted, [&](CollectiveOp op, int axis, double bytes) {
    sum += links.seconds_of(op, bytes, mesh, axis);
  });
  return sum;
}

}  // namespace tinyshard
