// From one placement to another, by the moves that moves_between() lists. Collectives take their
// parts along a first dim of their own, so splits elsewhere are moved to the front and back by
// views.
#include "multi/redistribute.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/uop/args.h"
#include "multi/change_mesh.h"
#include "multi/collective.h"
#include "multi/device_number.h"
#include "multi/grown.h"
#include "multi/movement_log.h"
#include "multi/moves.h"
#include "multi/parts.h"
#include "multi/relocation.h"
#include "multi/wire.h"

namespace tinyshard {
namespace {

// Size of `dim` when the placements of the axes below `axis` are applied.
int64_t size_above(const LocalValue& v, DimSpan global, int dim, int axis) {
  int64_t size = global[dim];
  for (int a = 0; a < axis; ++a) {
    if (v.place[a].is_shard() && v.place[a].dim == dim)
      size = (size + v.mesh->axes()[a].size - 1) / v.mesh->axes()[a].size;
  }
  return size;
}

UOp sliced(const UOp& x, int dim, int axis, int64_t parts) {
  return UOp::make(Op::ShardSlice, x.dtype(), {x}, Dims{dim, axis, parts});
}

// The value as one term of a sum along the axis: where it is not on the first device, zeros.
UOp as_one_term(const UOp& x, const Mesh& mesh, int axis) {
  const UOp first = DeviceNumber::coordinate(mesh, axis) < DeviceNumber(1);
  const Dims ones(x.shape().size(), 1);
  return where(expand(reshape(first, ones), x.shape()), x, const_like(x, 0));
}

// The part of `rows` rows that this device has, as one term of their sum: zeros around it.
UOp part_as_term(const UOp& x, const Mesh& mesh, int axis, int dim, int64_t rows) {
  const DeviceNumber first = DeviceNumber::coordinate(mesh, axis) * x.shape()[size_t(dim)];
  return rows_from(x, dim, DeviceNumber(0) - first, rows);
}

bool is_of_this_process(const Mesh& mesh) { return world().ranks == 1 || is_of_each_process(mesh); }

// The value whole on one device of the process that holds all parts: these go there and nowhere else.
void bring_to_one_device(LocalValue& v, DimSpan global, const Mesh& mesh) {
  const std::vector<MeshAxis> axes = v.mesh->axes();
  auto divides = [&](size_t a) { return v.place[a].is_shard() && axes[a].size > 1; };
  Dims places{kFromPlaces}, counts;
  for (int64_t p = 0; p < v.mesh->size(); ++p) {
    const std::vector<int64_t> at = v.mesh->coordinates(p);
    bool first = true;  // of those that have the same part
    for (size_t a = 0; a < axes.size(); ++a) first = first && (divides(a) || at[a] == 0);
    if (first) places.push_back(p);
  }
  UOp all = UOp::make(Op::CopyIn, v.local.dtype(), {on_its_mesh(v.local, *v.mesh)}, places,
                      mesh.payload());
  for (size_t a = 0; a < axes.size(); ++a) {
    if (divides(a)) counts.push_back(axes[a].size);
  }
  Dims shape = counts;
  shape.insert(shape.end(), v.local.shape().begin(), v.local.shape().end());
  all = reshape(all, shape);
  for (size_t a = axes.size(); a-- > 0;) {
    if (!divides(a)) continue;
    // Parts of the innermost axis are the last of the dims that count.
    const int outer = int(counts.size()) - 1, dim = v.place[a].dim;
    Dims order{outer};
    for (int d = 0; d < int(all.shape().size()); ++d) {
      if (d != outer) order.push_back(d);
    }
    all = parts_joined(permute(all, order), outer + dim, size_above(v, global, dim, int(a)));
    counts.pop_back();
  }
  v.local = all;
  v.mesh = mesh;
  v.place.clear();
  v.place.resize(mesh.axes().size());
}

// The first device of each rank.
Mesh of_all_ranks() {
  std::vector<DeviceRef> devices;
  for (const DeviceRef& d : world().devices) {
    if (devices.empty() || devices.back().rank != d.rank) devices.push_back(d);
  }
  return Mesh({{"ranks", int64_t(devices.size())}}, devices);
}

void change_mesh(LocalValue& v, DimSpan global, const Mesh& mesh,
                 const std::vector<Placement>& wanted) {
  // To the own device of each process a value comes by way of all ranks, where some have no part of it.
  if (is_of_each_process(mesh) && !is_of_each_process(*v.mesh) && !is_on_all_ranks(*v.mesh))
    v = on_other_mesh(std::move(v), global, of_all_ranks(), {Replicate});
  Mesh from = *v.mesh;
  // Between the ranks' mesh and one that each process has for itself, each process has both a whole
  // copy and all devices that need a part of it: nothing more travels, to one device or to several.
  const bool from_device_to_device =
      from.size() > 1 && mesh.size() > 1 && is_of_each_process(from) == is_of_each_process(mesh);
  if (from_device_to_device || is_out_of_reach(from, mesh)) {
    v = on_other_mesh(std::move(v), global, mesh, wanted);
    return;
  }
  if (mesh.size() == 1 && product(global) > 0 && is_of_this_process(from)) {
    std::vector<Placement> complete = v.place;
    std::ranges::replace_if(complete, &Placement::is_partial, Replicate);
    v = redistribute(std::move(v), global, from, complete);
    if (!Sharding{from, v.place}.is_replicated()) return bring_to_one_device(v, global, mesh);
  }
  v = redistribute(std::move(v), global, from, std::vector<Placement>(from.axes().size()));
  Dims parts;
  v.place.assign(mesh.axes().size(), Replicate);
  if (mesh.size() > 1) v.local = past_storages(v.local);
  // Values that are to be stored are stored in parts.
  const bool stored = v.local.op() == Op::Contiguous;
  const UOp& computed = stored ? v.local.src(0) : v.local;
  // On one device, too, a mask is computed where it is used: loops end at a size that is known when
  // the step runs only where they see the comparison with it.
  // Random numbers are, so that none of them travels.
  const bool grows =
      mesh.size() > 1 || computed.dtype() == DType::Bool || is_unplaced_draw(computed);
  if (UOp grown = grows ? grown_on(computed, mesh) : UOp()) {
    for (size_t a = 0; a < wanted.size(); ++a) {
      if (!wanted[a].is_shard()) continue;
      grown = sliced(grown, wanted[a].dim, int(a), mesh.axes()[a].size);
      v.place[a] = wanted[a];
    }
    v.local = stored ? UOp::make(Op::Contiguous, grown.dtype(), {grown}) : grown;
    v.mesh = mesh;
    return;
  }
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (!wanted[a].is_shard()) continue;
    parts.insert(parts.end(), {wanted[a].dim, int64_t(a), mesh.axes()[a].size});
    v.place[a] = wanted[a];
  }
  v.local = UOp::make(Op::CopyIn, v.local.dtype(), {v.local}, parts, mesh.payload());
  v.mesh = mesh;
}

// Returns whether a pending sum is added up on the way.
bool adds_up(const LocalValue& v, const std::vector<Placement>& wanted) {
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (v.place[a].is_partial() && !(v.place[a] == wanted[a])) return true;
  }
  return false;
}

// Every part of a constant is a constant, and so is every term of zero.
bool is_constant_there(const LocalValue& v, const std::vector<Placement>& wanted) {
  return is_const(v.local) && std::ranges::all_of(v.place, &Placement::is_replicate) &&
         std::ranges::all_of(wanted, [&](const Placement& p) {
           return !p.is_partial() || (p.op == ReduceOp::Sum && is_const(v.local, 0));
         });
}

}  // namespace

bool rearranges(const UOp& x) { return x.op() == Op::Reshape || x.op() == Op::Permute; }

const UOp& before_rearranging(const UOp& x) {
  const UOp* at = &x;
  while (rearranges(*at)) at = &at->src(0);
  return *at;
}

UOp before_widening(const UOp& local) {
  const UOp& at = before_rearranging(local);
  if (at.op() != Op::Cast || itemsize(at.src(0).dtype()) >= itemsize(at.dtype())) return local;
  if (local == at) return at.src(0);
  const UOp narrow = before_widening(local.src(0));
  return UOp::make(local.op(), narrow.dtype(), {narrow}, local->arg());
}

int64_t parts_of(const LocalValue& v, int dim) {
  int64_t parts = 1;
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (v.place[a].is_shard() && v.place[a].dim == dim) parts *= v.mesh->axes()[a].size;
  }
  return parts;
}

UOp with_padding_filled(const LocalValue& v, DimSpan global, int dim, const UOp& fill) {
  if (v.local.shape()[dim] * parts_of(v, dim) == global[dim]) return v.local;
  return with_others_filled(v, global, dim, 0, global[dim], fill);
}

UOp with_others_filled(const LocalValue& v, DimSpan global, int dim, int64_t low, int64_t high,
                       const UOp& fill) {
  // Places count from 1 and are cut as the value was, axis by axis: a slice beyond the end is 0.
  UOp place = UOp::make(Op::Iota, DType::I64, {}, Dims{global[dim]});
  place = binary(Op::Add, place, const_like(place, 1));
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (!v.place[a].is_shard() || v.place[a].dim != dim) continue;
    place =
        UOp::make(Op::ShardSlice, DType::I64, {place}, Dims{0, int64_t(a), v.mesh->axes()[a].size});
  }
  Dims ones(global.size(), 1);
  ones[dim] = v.local.shape()[dim];
  UOp inside = binary(Op::CmpLt, const_like(place, double(low)), place);
  if (high < global[dim])
    inside = binary(Op::And, inside, binary(Op::CmpLt, place, const_like(place, double(high + 1))));
  inside = expand(reshape(inside, ones), v.local.shape());
  Dims one(global.size(), 1);
  return where(inside, v.local, expand(reshape(fill, one), v.local.shape()));
}

LocalValue redistribute(LocalValue v, DimSpan global, const Mesh& mesh,
                        const std::vector<Placement>& wanted) {
  if (!v.mesh) {
    v.mesh = mesh;
    v.place.assign(mesh.axes().size(), Replicate);
  }
  if (!(*v.mesh == mesh)) {
    // A mask of one device is for itself where it is computed from little: see change_mesh.
    const UOp wide = v.local, narrow = before_widening(wide);
    if (narrow.dtype() != DType::Bool || v.mesh->size() > 1) v.local = narrow;
    change_mesh(v, global, mesh, wanted);
    v.local = cast(v.local, wide.dtype());
  }
  if (is_constant_there(v, wanted)) {
    v.place = wanted;
    v.local = reshape(v.local, Sharding{mesh, wanted}.local_shape(global));
    return v;
  }
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (mesh.axes()[a].size == 1)
      v.place[a] = wanted[a];  // on an axis of one device all placements are the same
  }
  if (v.place == wanted) return v;
  if (const UOp wide = v.local; !(before_widening(wide) == wide) && !adds_up(v, wanted)) {
    v.local = before_widening(wide);
    v = redistribute(std::move(v), global, mesh, wanted);
    v.local = cast(v.local, wide.dtype());
    return v;
  }
  observe([&] {
    LinkModel links;
    const DType type = v.local.dtype();
    return ObservedEvent{
        .kind = EventKind::Reshard,
        .name =
            fmt::format("{} {}: {} -> {}, {:.0f} bytes, {:.1f} us", name(type), to_string(global),
                        Sharding{mesh, v.place}.to_string(), Sharding{mesh, wanted}.to_string(),
                        bytes_moved(type, global, mesh, v.place, wanted),
                        1e6 * seconds_moved(type, global, mesh, v.place, wanted, links)),
        .origin = v.origin};
  });
  MovementLog::note([&] {
    LinkModel links;
    const DType type = v.local.dtype();
    return Movement{.dtype = type,
                    .shape = Dims(global.begin(), global.end()),
                    .mesh = mesh,
                    .from = v.place,
                    .to = wanted,
                    .bytes = bytes_moved(type, global, mesh, v.place, wanted),
                    .seconds = seconds_moved(type, global, mesh, v.place, wanted, links),
                    .origin = v.origin};
  });
  for (const Move& move : moves_between(mesh, v.place, wanted)) {
    const int a = move.axis;
    if (move.swapped_with >= 0) {
      v.local = swapped_over(v.local, mesh, a, move.swapped_with);
      std::swap(v.place[size_t(a)], v.place[size_t(move.swapped_with)]);
      continue;
    }
    const Placement from = v.place[size_t(a)], to = move.to;
    const int64_t parts = mesh.axes()[size_t(a)].size;
    auto sent = [&](const UOp& x, CollectiveOp op, bool before, bool after) {
      return collective(x, op, from.op, mesh, a, before, after, v.origin);
    };
    if (!move.op && to.is_partial()) {
      v.local = from.is_shard()
                    ? part_as_term(v.local, mesh, a, from.dim, size_above(v, global, from.dim, a))
                    : as_one_term(v.local, mesh, a);
    } else if (!move.op) {
      v.local = sliced(v.local, to.dim, a, parts);
    } else if (*move.op == CollectiveOp::ReduceScatter) {
      UOp terms = parts_first(to_wire(v.local, from.op), to.dim, parts);
      v.local = from_wire(sent(terms, *move.op, true, false), v.local.dtype(), from.op);
    } else if (*move.op == CollectiveOp::AllReduce) {
      UOp terms = to_wire(v.local, from.op);
      v.local = from_wire(sent(terms, *move.op, false, false), v.local.dtype(), from.op);
    } else if (*move.op == CollectiveOp::AllToAll) {
      UOp swapped = sent(parts_first(v.local, to.dim, parts), *move.op, true, true);
      v.local = parts_joined(swapped, from.dim, global[from.dim]);
    } else {
      UOp all = v.gather_on_use ? timed_gather(v.local, mesh, a, *v.gather_on_use, v.origin)
                                : sent(v.local, *move.op, false, true);
      v.local = parts_joined(all, from.dim, size_above(v, global, from.dim, a));
    }
    v.place[size_t(a)] = to;
  }
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (!(v.place[a] == wanted[a])) {
      throw UserError(fmt::format("a value that is {} over \"{}\" cannot become {}",
                                  v.place[a].to_string(), mesh.axes()[a].name,
                                  wanted[a].to_string()));
    }
  }
  return v;
}

}  // namespace tinyshard
